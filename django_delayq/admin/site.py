"""What all pages share: their addresses, permissions, frame and errors."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from django.conf import settings
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import DataError, Error, IntegrityError, transaction
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.cache import get_conditional_response
from django.utils.http import quote_etag, url_has_allowed_host_and_scheme
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..core.exceptions import (
    DelayQError,
    NotPermitted,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)
from ..core.present import duration_units
from ..models import Dashboard
from ..operators.topic_permission import (
    is_permitted,
    is_visible,
    permitted_topics,
    remembered_topics,
)
from ..stats import overview_sql

logger = logging.getLogger("delayq")

View = Callable[..., HttpResponseBase]
V = TypeVar("V", bound=View)

#: The row of links on each page: name of the address and what it says.
TABS = (
    ("changelist", _("Overview")),
    ("dead_letters", _("Dead letters")),
    ("archive", _("Archive")),
    ("statistics", _("Statistics")),
    ("bulk_list", _("Bulk operations")),
    ("workers", _("Workers")),
    ("recurring", _("Recurring")),
    ("operator_actions", _("Operator actions")),
    ("schedule", _("Schedule")),
)


#: The tab that other pages lie under.
_UNDER = {
    "topic": "changelist",
    "topic_pause": "changelist",
    "topic_resume": "changelist",
    "message": "changelist",
    "message_cancel": "changelist",
    "message_cancel_running": "changelist",
    "message_edit": "changelist",
    "message_reschedule": "changelist",
    "message_run_now": "changelist",
    "find": "changelist",
    "running": "workers",
    "waiting": "changelist",
    "waiting_start": "changelist",
    "archived": "archive",
    "archived_discard": "archive",
    "archived_replay": "archive",
    "unarchivable": "archive",
    "unarchivable_entry": "archive",
    "bulk": "bulk_list",
    "bulk_new": "bulk_list",
    "bulk_start": "bulk_list",
    "api_tokens": "operator_actions",
}


#: Seconds between two refreshes that one can choose. 5 is what a live page begins with.
INTERVALS = (1, 2, 5, 15, 60)
#: The cookie of who wants to see UTC, and how long it lasts.
ZONE_COOKIE, ZONE_KEPT_S = "delayq_zone", 365 * 86_400
#: What differs between two renderings of the same: texts that times.js keeps up to date, where the
#: last hour of a link begins, tokens.
_VOLATILE = re.compile(
    rb'(?<=data-delayq-at=")([^"]*"[^>]*>)[^<]*|(?<=data-delayq-clock>).*?(?=</span>)'
    rb'|(?<=id="id_at_helptext">)[^<]*|(?<=id="delayq-summary" hidden>)[^<]*'
    rb'|(?<=[?&;]since=)[^"&]*|(?<=[?&;]until=)[^"&]*'
    rb'|name="(?:csrfmiddlewaretoken|token)" value="[^"]*"'
)


@dataclass(frozen=True)
class PageRoute:
    """The address of a page, and who may open it."""

    route: str
    name: str
    view: View
    permissions: tuple[str, ...]
    methods: tuple[str, ...]


_pages: list[PageRoute] = []


def register_page(
    route: str, name: str, *permissions: str, methods: tuple[str, ...] = ("GET", "HEAD")
) -> Callable[[V], V]:
    """Make `view(request, **arguments of the route)` a page. It needs view_dashboard and
    `permissions`.

    Its address is `admin:django_delayq_dashboard_<name>`.
    """

    def decorate(view: V) -> V:
        _pages.append(PageRoute(route, name, view, ("view_dashboard", *permissions), methods))
        return view

    return decorate


def register_action(route: str, name: str, *permissions: str) -> Callable[[V], V]:
    """Make `view(request, **arguments)` the target of a form: a POST that redirects to a page.

    The view returns the redirect. A DelayQError is shown on the page of the form.
    """

    def decorate(view: V) -> V:
        @wraps(view)
        def answer(request: HttpRequest, **arguments: Any) -> HttpResponseBase:
            try:
                return view(request, **arguments)
            except NotPermitted:
                raise
            except DelayQError as error:
                messages.error(request, str(error))
                return back(request)

        register_page(route, name, *permissions, methods=("POST",))(answer)
        return view

    return decorate


def page_urls(site: AdminSite) -> list[URLPattern]:
    """All addresses, for one admin site."""
    # Outside the transaction of ATOMIC_REQUESTS: an enqueue has to fail here and not at the commit,
    # and the record of an action must survive a page that fails.
    patterns = []
    for route in _pages:
        view = site.admin_view(_guarded(route, site))
        for alias in settings.DATABASES:
            view = transaction.non_atomic_requests(alias)(view)
        patterns.append(path(route.route, view, name=_full(route.name)))
    return patterns


def url(request: HttpRequest, name: str, **arguments: Any) -> str:
    """The address of a page on the request's admin site."""
    return reverse(f"admin:{_full(name)}", kwargs=arguments, current_app=request.current_app)


def show(
    request: HttpRequest,
    template: str,
    title: str,
    *,
    status: int = 200,
    refreshed: bool = False,
    charts: bool = False,
    **context: Any,
) -> TemplateResponse:
    """A page of ours inside the admin's frame. `template` lies in templates/django_delayq/.

    `refreshed`: the script fetches its part again and again; what has not changed is not sent.
    `charts`: it has charts.
    """
    site: AdminSite = request.delayq_site  # type: ignore[attr-defined]
    permissions = {route.name: route.permissions for route in _pages}
    name = str(request.resolver_match and request.resolver_match.url_name).removeprefix(_full(""))
    frame = {
        **site.each_context(request),
        "opts": Dashboard._meta,
        "title": title,
        "delayq_tabs": [
            (url(request, name), text, name)
            for name, text in TABS
            if _holds(request, *permissions[name])
        ],
        "delayq_may": {
            codename: may(request, codename) for codename, _ in Dashboard._meta.permissions
        },
        "delayq_tab": _UNDER.get(name, name),
        "delayq_is_first": name == "changelist",
        "delayq_frame": "django_delayq/_part.html" if _is_part(request) else "admin/base_site.html",
        "delayq_live": INTERVALS[2] if refreshed and request.method == "GET" else 0,
        "delayq_intervals": INTERVALS,
        "delayq_charts": charts,
        "delayq_zone": timezone.get_current_timezone_name(),
        "delayq_local_zone": str(timezone.get_default_timezone()) if settings.USE_TZ else "UTC",
        "delayq_is_utc": _wants_utc(request),
        "delayq_now": time.time(),
        "delayq_in": gettext("in %(time)s"),
        "delayq_ago": gettext("%(time)s ago"),
        "delayq_units": json.dumps(duration_units()),
    }
    response = TemplateResponse(
        request, f"django_delayq/{template}", {**frame, **context}, status=status
    )
    response["Cache-Control"] = "no-store"
    if _is_part(request):
        response.add_post_render_callback(lambda rendered: _unless_same(request, rendered))
    return response


def back(request: HttpRequest, fallback: str = "changelist", **arguments: Any) -> HttpResponse:
    """Redirect to the page that the form names in `next`, or to the fallback."""
    target = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(
        target, {request.get_host()}, require_https=request.is_secure()
    ):
        target = url(request, fallback, **arguments)
    return HttpResponseRedirect(target)


def may(request: HttpRequest, *permissions: str) -> bool:
    """Whether the user has all of these permissions of ours, on the topic of the page. On a page
    about several topics view_payload is needed on each that the user sees."""
    if not _holds(request, *permissions):
        return False
    if topic := getattr(request, "delayq_topic", ""):
        return is_permitted(request.user, topic, *permissions)
    if "view_payload" not in permissions:
        return True
    return permitted_topics(request.user) == permitted_topics(request.user, "view_payload")


def enter_topic(request: HttpRequest, topic: str, *permissions: str) -> None:
    """From here on the page is about this topic. Raises Http404 when the topic does not exist for
    the user, and PermissionDenied when the user lacks one of these permissions on it."""
    if not is_visible(request.user, topic):
        raise Http404(_("There is no such topic."))
    request.delayq_topic = topic  # type: ignore[attr-defined]
    if not is_permitted(request.user, topic, *permissions):
        raise PermissionDenied


def _is_part(request: HttpRequest) -> bool:
    """Whether the script asks for what changes of the page."""
    return getattr(request, "delayq_part", False)


def _wants_utc(request: HttpRequest) -> bool:
    # Without USE_TZ the database has times of the project's zone only.
    return settings.USE_TZ and request.COOKIES.get(ZONE_COOKIE) == "utc"


def _unless_same(request: HttpRequest, response: HttpResponse) -> HttpResponseBase:
    content = _VOLATILE.sub(rb"\1", response.content)
    etag = quote_etag(hashlib.blake2b(content, digest_size=12).hexdigest())
    response["ETag"] = etag
    return get_conditional_response(request, etag=etag, response=response) or response


def _note_part(request: HttpRequest) -> None:
    """The address of the page is that without `part`."""
    if request.GET.get("part") and request.method == "GET":
        query = request.GET.copy()
        del query["part"]
        request.delayq_part = True  # type: ignore[attr-defined]
        request.GET, request.META["QUERY_STRING"] = query, query.urlencode()  # type: ignore[assignment]


def _holds(request: HttpRequest, *permissions: str) -> bool:
    return all(request.user.has_perm(f"django_delayq.{codename}") for codename in permissions)


def _full(name: str) -> str:
    return f"{Dashboard._meta.app_label}_{Dashboard._meta.model_name}_{name}"


def _guarded(route: PageRoute, site: AdminSite) -> View:
    @wraps(route.view)
    def view(request: HttpRequest, **arguments: Any) -> HttpResponseBase:
        request.current_app, request.delayq_site = site.name, site  # type: ignore[attr-defined]
        if not _holds(request, *route.permissions):
            raise PermissionDenied
        if request.method not in route.methods:
            return HttpResponseNotAllowed(route.methods)
        _note_part(request)
        changes_nothing = request.method in ("GET", "HEAD")
        with remembered_topics(request.user) if changes_nothing else nullcontext():
            if topic := arguments.get("topic", ""):
                enter_topic(request, topic, *route.permissions)
            with timezone.override("UTC" if _wants_utc(request) else None):
                response = _answer(route, request, arguments)
                if isinstance(response, TemplateResponse):
                    response = response.render()  # in this zone
        if _is_part(request) and isinstance(response, HttpResponseRedirect):
            # A script cannot follow it.
            return HttpResponse(status=204, headers={"X-DelayQ-Location": response.url})
        return response

    return view


def _answer(route: PageRoute, request: HttpRequest, arguments: dict[str, Any]) -> HttpResponseBase:
    """What the view answers, or the page of a Redis or database that is away."""
    try:
        return route.view(request, **arguments)
    except StoreError as error:
        title = (
            gettext("Redis cannot be reached")
            if isinstance(error, StoreUnavailable | OutcomeUnknown)
            else gettext("Redis gave an unexpected answer")
        )
        return show(request, "away.html", title, status=503, problem=error.problem)
    except (DataError, IntegrityError):
        raise  # a mistake of ours: the database answers
    except Error as error:
        logger.exception("A page could not be shown: %s", request.path)
        title = gettext("The database does not answer")
        problem = overview_sql.problem_of(error)
        return show(request, "away.html", title, status=503, problem=problem, database=True)
