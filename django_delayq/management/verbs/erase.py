"""Erase a person's data: in the queue, the outbox, the archive, texts of operators and the lake.

Messages are the person's by an argument, or by the first characters of their keys. Those that wait
are cancelled. Rows of the archive lose key, arguments, headers, errors and results; with --delete
they go as a whole. Begin with --dry-run: it counts, and names some of each place. Ctrl-C is safe:
run it again to go on.

  python manage.py delayq erase --argument customer_id=42 --dry-run
  python manage.py delayq erase --argument order.email=anna@example.org --lake s3://shop/lake --yes
  python manage.py delayq erase --key-prefix customer:42: --reason "request 17"

Exit codes: 0 all is erased, 1 something is left (or an error): run it again later; 2 wrong options,
3 no Redis.
"""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from ...archive.erasure import Person
from ...operators.erase import WAIT, EraseLake, erase
from ...worker.process.runner import ExitCode
from ..cli import (
    DURATIONS,
    Answer,
    Verb,
    add_lake,
    add_record,
    name_and_value,
    parse_duration,
    storage_of,
)


class Command(Verb):
    """Erases a person's data."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Whose data, where, and for the record."""
        parser.add_argument(
            "--argument",
            type=name_and_value,
            default=("", None),
            metavar="NAME=VALUE",
            help="with this argument, JSON or text; a.b=VALUE looks into objects and lists",
        )
        parser.add_argument(
            "--key-prefix", default="", metavar="TEXT", help="messages whose keys begin with this"
        )
        parser.add_argument("--task", default="", metavar="NAME", help="only of this task")
        parser.add_argument("--topic", default="", metavar="TOPIC", help="only of this topic")
        parser.add_argument(
            "--delete", action="store_true", help="delete the rows (default: redact them)"
        )
        add_lake(parser)
        parser.add_argument(
            "--wait",
            type=parse_duration,
            default=timedelta(seconds=WAIT),
            metavar="DURATION",
            help=f"how long to wait for messages that run: {DURATIONS} (default: {WAIT:.0f}s)",
        )
        parser.add_argument("--dry-run", action="store_true", help="count; change nothing")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Erase, and report."""
        name, value = options["argument"]
        person = Person(
            argument=name,
            value=value,
            as_typed=bool(name),
            key_prefix=options["key_prefix"],
            task=options["task"],
            topic=options["topic"],
        )
        lake = _lake(options) if options["lake"] else None
        if not (options["dry_run"] or options["yes"]):
            self._confirm()
        done = erase(
            person,
            delete=options["delete"],
            dry_run=options["dry_run"],
            by=options["by"],
            reason=options["reason"],
            wait=options["wait"],
            lake=lake,
            progress=lambda so_far: self.progress(f"erased: {so_far}"),
        )
        verb = "would have erased" if options["dry_run"] else "erased"
        lines = [f"{verb}: {done}"]
        lines += [f"left: {text}" for text in done.left]
        lines += [f"note: {text}" for text in done.notes]
        places = done.places.values()
        head = ("place", "count", "some of them")
        table = [
            head,
            *((place.name, f"{place.count:,}", ", ".join(place.sample)) for place in places),
        ]
        return Answer(
            text="\n".join(lines),
            data={
                "dry_run": options["dry_run"],
                "complete": done.complete,
                "places": list(places),
                "left": done.left,
                "notes": done.notes,
            },
            rows=table if done.places else (),
            right=(False, True, False),
            code=0 if done.complete or options["dry_run"] else ExitCode.ERROR,
        )

    def _confirm(self) -> None:
        """Ask a person. Raises CommandError where nobody can answer, or for another answer."""
        question = "This cannot be undone. Type erase to go on: "
        try:
            answer = input(question)
        except EOFError:
            answer = ""
        if answer.strip() != "erase":
            raise CommandError(
                "Nothing was erased. Try --dry-run first, and confirm, or give --yes.",
                returncode=ExitCode.CONFIGURATION,
            )


def _lake(options: dict[str, Any]) -> EraseLake:
    """Raises CommandError without the extra `lake`, which brings deltalake and pyarrow."""
    try:
        from ...pipeline.lake.lake_erasure import LakeErasure
    except ImportError as error:
        raise CommandError(
            f"A lake needs the extra: pip install 'django-delayq[lake]'. {error}.",
            returncode=ExitCode.CONFIGURATION,
        ) from None
    return LakeErasure(storage_of(options))
