"""manage.py delayq token."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_delayq.models import ApiToken
from django_delayq.operators.api_tokens import token_digest


def token(*arguments: str) -> str:
    out = StringIO()
    call_command("delayq", "token", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_a_token_is_made_listed_and_revoked() -> None:
    rights = ("--rights", "send,consume", "--namespace", "acme.", "--rate", "10/s")
    shown = token("create", "acme", *rights, "--expires", "30d")
    row = ApiToken.objects.get()
    assert row.digest == token_digest(shown.splitlines()[0])
    (listed,) = json.loads(token("list", "--json"))
    assert (listed["name"], listed["rights"], listed["namespace"], listed["state"]) == (
        "acme",
        ["send", "consume"],
        "acme.",
        "valid",
    )
    assert "token" not in listed
    token("revoke", row.public_id, "--reason", "lost")
    assert "revoked" in token("list")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments",
    [("create",), ("create", "a"), ("create", "a b", "--rights", "send"), ("revoke", "x")],
)
def test_what_cannot_be_meant_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        token(*arguments)
    assert not ApiToken.objects.exists()
