"""The addresses of the HTTP API. Include them: the API is off until then."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, re_path

from .operations_api import api, guarded, no_such_address

_patterns, _, app_name = api.urls


def _guard(pattern: URLPattern | URLResolver) -> URLPattern | URLResolver:
    if isinstance(pattern, URLPattern):
        pattern.callback = guarded(pattern.callback)
    else:
        for inner in pattern.url_patterns:
            _guard(inner)
    return pattern


urlpatterns = [*map(_guard, _patterns), re_path("", guarded(no_such_address))]
