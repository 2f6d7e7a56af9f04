"""The tokens of the HTTP API: what each may do, and the buttons that make and revoke them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils.timezone import now
from django.utils.translation import gettext as _

from ...core.exceptions import DelayQError, InvalidMessage
from ...models import ApiRight
from ...operators.api_tokens import (
    TokenOptions,
    create_token,
    may_manage,
    revoke_token,
    tokens,
)
from ..site import back, register_action, register_page, show


@register_page("tokens/", "api_tokens", "manage_tokens", methods=("GET", "HEAD", "POST"))
def api_tokens_view(request: HttpRequest) -> HttpResponse:
    """All of them, the newest first. A POST makes one, and shows it this once."""
    token = ""
    if request.method == "POST":
        try:
            # What the form says. Raises InvalidMessage.
            posted, days = request.POST, request.POST.get("days", "").strip()
            if days and not re.fullmatch(r"[1-9][0-9]{0,3}", days):
                raise InvalidMessage(_("The days are a whole number from 1 to 9,999."))
            end = datetime.now(tz=timezone.utc) + timedelta(days=int(days)) if days else None
            row, token = create_token(
                request.user,
                TokenOptions(
                    name=posted.get("name", "").strip(),
                    rights=posted.getlist("right"),
                    topics=posted.get("topics", "*").replace(",", " ").split(),
                    namespace=posted.get("namespace", "").strip(),
                    rate=posted.get("rate", "").strip(),
                    expires_at=end,
                ),
            )
        except DelayQError as error:
            messages.error(request, str(error))
        else:
            messages.success(request, _("The token %(name)s is made.") % {"name": row.name})
    return show(
        request,
        "api_tokens.html",
        _("API tokens"),
        rows=[row for row in tokens() if may_manage(request.user, row)],
        rights=ApiRight.values,
        token=token,
        now=now(),
    )


@register_action("tokens/revoke/", "api_token_revoke", "manage_tokens")
def api_token_revoke_view(request: HttpRequest) -> HttpResponse:
    """The token is refused from now on."""
    public_id, reason = request.POST.get("token", ""), request.POST.get("reason", "").strip()
    row = revoke_token(request.user, public_id, reason=reason)
    messages.success(request, _("The token %(name)s is revoked.") % {"name": row.name})
    return back(request, "api_tokens")
