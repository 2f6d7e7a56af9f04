"""Make, list or revoke tokens of the HTTP API.

`create` prints the token once; the database has only its hash. Rights are send, consume, inspect
and operate. A topic may have `*` for any characters. With a namespace its holder works in topics of
that prefix only, and never sees the prefix.

  python manage.py delayq token create billing --rights send,inspect --topics "invoices.*,mail"
  python manage.py delayq token create acme --rights send,consume --namespace acme. --rate 100/s
  python manage.py delayq token list
  python manage.py delayq token revoke 5f0c12ab34de --reason "the laptop is lost"
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from ...core.exceptions import InvalidMessage
from ...models import ApiToken
from ...operators.api_tokens import TokenOptions, create_token, revoke_token, tokens
from ..cli import Answer, ShellUser, Verb, add_record, in_time_zone, parse_due

_HEAD = ("id", "name", "rights", "topics", "namespace", "rate", "expires", "last used", "state")


class Command(Verb):
    """Makes, lists or revokes tokens."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What to do, with which token, and what a new one may do."""
        parser.add_argument("what", choices=("create", "list", "revoke"), help="what to do")
        parser.add_argument("token", nargs="?", help="the name of a new token, or the id to revoke")
        parser.add_argument("--rights", default="", metavar="A,B", help="what a new token may do")
        parser.add_argument("--topics", default="*", metavar="A,B", help="and where (default: *)")
        parser.add_argument("--namespace", default="", metavar="PREFIX", help="and under which")
        parser.add_argument("--rate", default="", help="most calls: 100/s, 600/m or 5000/h")
        parser.add_argument(
            "--expires", type=parse_due, metavar="WHEN", help="its end: 30d (from now on) or a date"
        )
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """The list, or what was done."""
        what, subject, user = options["what"], options["token"], ShellUser(options["by"])
        if what == "list":
            found = tokens()
            return Answer(
                text="" if found else "no token",
                data=[_plain(row) for row in found],
                rows=[_HEAD, *map(_row, found)] if found else (),
                right=[False] * len(_HEAD),
            )
        if not subject:
            noun = "a name for it" if what == "create" else "its id, as the list shows it"
            raise InvalidMessage(f"Give {noun}: delayq token {what} ...")
        if what == "revoke":
            row = revoke_token(user, subject, reason=options["reason"])
            return Answer(text=f"revoked {row}", data=_plain(row))
        row, secret = create_token(
            user,
            TokenOptions(
                name=subject,
                rights=_names(options["rights"]),
                topics=_names(options["topics"]),
                namespace=options["namespace"],
                rate=options["rate"],
                expires_at=options["expires"],
            ),
        )
        return Answer(
            text=f"{secret}\nKeep it now: nobody can read it again.",
            data={**_plain(row), "token": secret},
        )


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _row(row: ApiToken) -> tuple[str, ...]:
    expires = in_time_zone(row.expires_at) if row.expires_at else "never"
    used = in_time_zone(row.last_used_at) if row.last_used_at else "-"
    named = (row.public_id, row.name, row.rights, row.topics, row.namespace or "-", row.rate or "-")
    return (*named, expires, used, row.status)


def _plain(row: ApiToken) -> dict[str, Any]:
    """What JSON can hold."""
    instants = ("created_at", "expires_at", "last_used_at", "revoked_at")
    return {
        "id": row.public_id,
        "name": row.name,
        "rights": row.rights.split(),
        "topics": row.topics.split(),
        "namespace": row.namespace,
        "rate": row.rate,
        "created_by": row.created_by,
        **{name: at and at.isoformat() for name in instants for at in (getattr(row, name),)},
        "state": row.status,
    }
