"""The API, and a view that does nothing, behind the same server."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt


@csrf_exempt
def bare(request: HttpRequest) -> HttpResponse:
    """What Django takes for a call."""
    return HttpResponse(b"{}", content_type="application/json")


urlpatterns = [
    path("bare/", bare),
    path("api/", include("django_delayq.integrations.api.urls")),
]
