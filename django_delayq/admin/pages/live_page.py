"""What the overview fetches again and again: its changing part, and nothing when that has not
changed."""

from __future__ import annotations

import hashlib

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils.cache import get_conditional_response
from django.utils.http import quote_etag

from ...stats import overview
from ..site import page
from .overview_page import context_of


@page("live/", "live")
def live(request: HttpRequest) -> HttpResponseBase:
    """A part of a page, with an ETag."""
    response = render(request, "django_delayq/_overview.html", context_of(overview.overview()))
    response["ETag"] = etag = quote_etag(
        hashlib.blake2b(response.content, digest_size=12).hexdigest()
    )
    response["Cache-Control"] = "no-store"
    return get_conditional_response(request, etag=etag, response=response) or response
