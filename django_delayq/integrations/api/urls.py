"""The addresses of the HTTP API. Include them: the API is off until then."""

from __future__ import annotations

from functools import wraps

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, re_path

from .bearer import bearer
from .operations_api import View, api, guarded, no_such_address
from .sending import enqueue_batch, enqueue_message

_patterns, _, app_name = api.urls
#: The calls that come most often. They read their bodies themselves, and their only parameter needs
#: no model: without ninja's own steps a call takes a tenth less.
_OFTEN: dict[str, View] = {
    "topics/<topic>/messages": enqueue_message,
    "topics/<topic>/messages/batch": enqueue_batch,
}


def _guard(pattern: URLPattern | URLResolver) -> URLPattern | URLResolver:
    if isinstance(pattern, URLPattern):
        often = _OFTEN.get(str(pattern.pattern))
        view: View = pattern.callback
        pattern.callback = guarded(_direct(often, view) if often else view)
    else:
        for inner in pattern.url_patterns:
            _guard(inner)
    return pattern


def _direct(often: View, otherwise: View) -> View:
    """A POST goes to the first view as ninja would let it."""

    @wraps(otherwise)
    def answer(request: HttpRequest, topic: str) -> HttpResponse:
        if request.method != "POST":
            return otherwise(request, topic=topic)
        try:
            request.auth = bearer(request)  # type: ignore[attr-defined]
            return often(request, topic)
        except Exception as error:
            return api.on_exception(request, error)

    return answer


# Django looks through them in this order, and twice where no slash is at the end of an address.
_patterns.sort(key=lambda pattern: str(pattern.pattern) not in _OFTEN)
urlpatterns = [*map(_guard, _patterns), re_path("", guarded(no_such_address))]
