"""The API, a view that does nothing, and one that enqueues by hand, behind the same server."""

from __future__ import annotations

import json

from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt

from tests.benchmarks.tasks import letter


@csrf_exempt
def bare(request: HttpRequest) -> HttpResponse:
    """What Django takes for a call."""
    return HttpResponse(b"{}", content_type="application/json")


@csrf_exempt
def by_hand(request: HttpRequest) -> HttpResponse:
    """What a project writes to let others enqueue."""
    given = json.loads(request.body)["kwargs"]
    handle = letter.enqueue(given["order"], given["note"])
    return HttpResponse(json.dumps({"id": handle.id}), content_type="application/json", status=201)


urlpatterns = [
    path("by-hand/", by_hand),
    path("bare/", bare),
    path("api/", include("django_delayq.integrations.api.urls")),
]
