"""The switch between the project's time zone and UTC."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from ..site import ZONE_COOKIE, ZONE_KEPT_S, back, register_action


@register_action("zone/", "zone")
def zone_view(request: HttpRequest) -> HttpResponse:
    """From now on this browser shows all times in UTC, or in the project's zone."""
    response = back(request)
    if request.POST.get("zone") == "utc":
        response.set_cookie(
            ZONE_COOKIE,
            "utc",
            max_age=ZONE_KEPT_S,
            path=request.path.removesuffix("zone/"),
            secure=request.is_secure(),
            httponly=True,
            samesite="Lax",
        )
    else:
        response.delete_cookie(ZONE_COOKIE, path=request.path.removesuffix("zone/"))
    return response
