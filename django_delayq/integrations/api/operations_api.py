"""The NinjaAPI object: its parts, how it reads JSON, and how errors become answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

import msgspec
from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.db import Error
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.http.response import HttpResponseNotAllowed
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError
from ninja.parser import Parser

from ...core.exceptions import DelayQError
from ...core.version import PACKAGE_VERSION
from . import consuming, controlling, reading, sending  # noqa: F401 - they fill the router
from .bearer import Caller, bearer
from .documents import ProblemDocument
from .problems import Problem
from .router import router
from .strict_json import read_strict

logger = logging.getLogger("delayq.api")

#: Largest body of a call, unless DATA_UPLOAD_MAX_MEMORY_SIZE is smaller.
MOST_BYTES = 4 * 1024 * 1024

View = Callable[..., HttpResponse]


class _JsonParser(Parser):
    """Strict JSON: no NaN, no half characters, no depth that breaks the interpreter, no name that
    stands twice."""

    def parse_body(self, request: HttpRequest) -> Any:
        return read_strict(request.body, msgspec.json.decode)


_UNUSED = HttpResponse()


class _Api(NinjaAPI):
    """With the errors in its OpenAPI document: each call may be answered by one."""

    def create_temporal_response(self, request: HttpRequest) -> HttpResponse:
        """Every view makes its own answer."""
        return _UNUSED

    def get_openapi_schema(self, **options: Any) -> Any:
        schema = super().get_openapi_schema(**options)
        problem = {"application/problem+json": {"schema": ProblemDocument.model_json_schema()}}
        for operations in schema["paths"].values():
            for operation in operations.values():
                responses = operation["responses"]
                if 201 in responses:  # what ninja says of a call without a model of its answer
                    responses.pop(200, None)
                responses["default"] = {"description": "An error (RFC 9457)", "content": problem}
        return schema


api = _Api(
    title="django-delayq",
    version=PACKAGE_VERSION,
    description="A delay queue: enqueue, consume with leases, inspect and operate.",
    docs_url=None,
    urls_namespace="delayq-api",
    auth=bearer,
    parser=_JsonParser(),
)
api.add_router("", router)


@api.exception_handler(Problem)
def _problem(request: HttpRequest, problem: Problem) -> HttpResponse:
    return problem.response()


@api.exception_handler(DelayQError)
def _refused(request: HttpRequest, error: DelayQError) -> HttpResponse:
    caller = getattr(request, "auth", None)
    problem = Problem.of(error, caller.namespace if isinstance(caller, Caller) else "")
    if problem.status >= 500:
        logger.warning("%s %s: %s: %s", request.method, request.path, type(error).__name__, error)
    return problem.response()


@api.exception_handler(Error)
def _database_failed(request: HttpRequest, error: Error) -> HttpResponse:
    logger.exception("%s %s has failed", request.method, request.path)
    return Problem(
        503,
        "database-unavailable",
        "The database does not answer.",
        headers={"Retry-After": "1"},
    ).response()


@api.exception_handler(ValidationError)
def _invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    # ninja names the body, and then the parameter of the view that gets it.
    places = (".".join(map(str, each["loc"])).replace("body.body", "body") for each in error.errors)
    errors = [
        {"at": place, "problem": each["msg"]}
        for place, each in zip(places, error.errors, strict=True)
    ]
    words = "; ".join(f"{each['at']}: {each['problem']}" for each in errors[:3])
    return Problem(422, "invalid", words, errors=errors[:100]).response()


@api.exception_handler(HttpError)
def _http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    if error.status_code == 400:
        return Problem(400, "malformed", "The body cannot be read.").response()
    return Problem(error.status_code, "failed", error.message).response()


@api.exception_handler(SuspiciousOperation)
@api.exception_handler(UnreadablePostError)
def _unreadable(request: HttpRequest, error: Exception) -> HttpResponse:
    """Too many parameters, say, or a caller who has gone in the middle of the body."""
    return Problem(400, "malformed", "The call cannot be read.").response()


@api.exception_handler(Http404)
def _not_found(request: HttpRequest, error: Http404) -> HttpResponse:
    return no_such_address(request)


@api.exception_handler(Exception)
def _failed(request: HttpRequest, error: Exception) -> HttpResponse:
    logger.error("%s %s has failed", request.method, request.path, exc_info=error)
    return Problem(500, "failed", "The call has failed.").response()


def no_such_address(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """404 for whatever is no address of the API."""
    return Problem(404, "no-such-address", "There is no such address.").response()


def guarded(view: View) -> View:
    """What holds for each call: bounded bodies of the right type, problems as JSON, and headers
    that keep answers out of caches."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        problem = _refusal(request)
        try:
            response = problem.response() if problem else view(request, *args, **kwargs)
        except Http404:  # ninja's page at the root
            response = no_such_address(request)
        if isinstance(response, HttpResponseNotAllowed):
            allowed = {"Allow": response["Allow"]}
            words = "This address takes another method."
            response = Problem(405, "method-not-allowed", words, headers=allowed).response()
        response["Cache-Control"] = "no-store"
        response["X-Content-Type-Options"] = "nosniff"
        return response

    answer.csrf_exempt = True  # type: ignore[attr-defined]  # no cookie counts, only the token
    # A long poll must not hold a transaction, and a failed call must keep its record.
    answer._non_atomic_requests = set(settings.DATABASES)  # type: ignore[attr-defined]
    return answer


def _refusal(request: HttpRequest) -> Problem | None:
    """Why the body of a call is not read."""
    meta = request.META
    length = meta.get("CONTENT_LENGTH") or "0"
    if meta.get("HTTP_TRANSFER_ENCODING"):
        return Problem(411, "length-required", "Send the body with a Content-Length.")
    upload = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    most = MOST_BYTES if upload is None else min(MOST_BYTES, upload)
    if not length.isdecimal() or int(length) > most:
        return Problem(413, "body-too-large", f"A body has at most {most:,} bytes.")
    if length == "0":
        return None
    if meta.get("HTTP_CONTENT_ENCODING", "identity") != "identity":
        return Problem(415, "unsupported", "Send the body without a Content-Encoding.")
    wanted = sending.NDJSON if request.path.endswith("/batch") else "application/json"
    if request.content_type != wanted:
        return Problem(415, "unsupported", f"Send the body as {wanted}.")
    return None
