"""The page of the tokens of the HTTP API."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_delayq.models import ApiToken
from django_delayq.operators.api_tokens import token_digest
from tests.admin.browser import address

FORM = {"name": "billing", "right": ["send", "inspect"], "topics": "mail invoices.*", "days": "30"}


@pytest.fixture
def page(delayq: object, admin_client: Client) -> str:
    return address("api_tokens")


def test_a_token_is_shown_once_when_it_is_made(page: str, admin_client: Client) -> None:
    shown = admin_client.post(page, FORM).content.decode()
    token = re.search(r"dq_[0-9a-f]{12}_[\w-]{43}", shown)[0]  # type: ignore[index]
    row = ApiToken.objects.get()
    assert (row.digest, row.rights, row.topics) == (
        token_digest(token),
        "send inspect",
        "mail invoices.*",
    )
    assert row.expires_at is not None
    again = admin_client.get(page).content.decode()
    assert "billing" in again
    assert token not in again


def test_a_token_that_cannot_be_meant_is_refused_with_a_reason(
    page: str, admin_client: Client
) -> None:
    for wrong in ({"right": []}, {"days": "x"}, {"name": "<b>"}, {"namespace": "acme"}):
        shown = admin_client.post(page, FORM | wrong)
        assert shown.status_code == 200
        assert b"errorlist" in shown.content or b'class="error"' in shown.content
    assert not ApiToken.objects.exists()


def test_a_token_is_revoked_with_a_reason(page: str, admin_client: Client) -> None:
    admin_client.post(page, FORM)
    row = ApiToken.objects.get()
    revoke = address("api_token_revoke")
    admin_client.post(revoke, {"token": row.public_id, "reason": " "})
    assert ApiToken.objects.get().revoked_at is None
    admin_client.post(revoke, {"token": row.public_id, "reason": "lost"})
    assert ApiToken.objects.get().revoked_at is not None
    assert "Revoked" in admin_client.get(page).content.decode()


def test_only_who_may_manage_tokens_sees_them(page: str) -> None:
    client = Client()
    client.force_login(User.objects.create_user("guest", is_staff=True))
    assert client.get(page).status_code == 403
    assert client.post(page, FORM).status_code == 403
