"""What every page has in common: its address, who may see it, and how it speaks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import DataError, Error, IntegrityError, transaction
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..core.exceptions import (
    DelayQError,
    NotPermitted,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)
from ..models import Dashboard
from ..stats import overview_sql

logger = logging.getLogger("delayq")

View = Callable[..., HttpResponseBase]

#: The row of links on each page: name of the address and what it says.
TABS = (
    ("changelist", _("Overview")),
    ("dead_letters", _("Dead letters")),
    ("archive", _("Archive")),
    ("statistics", _("Statistics")),
    ("bulk_list", _("Bulk operations")),
    ("workers", _("Workers")),
    ("operator_actions", _("Operator actions")),
    ("schedule", _("Schedule")),
)


#: The tab that other pages lie under.
_UNDER = {
    "topic": "changelist",
    "message": "changelist",
    "archived": "archive",
    "unarchivable": "archive",
    "unarchivable_entry": "archive",
    "bulk": "bulk_list",
    "bulk_new": "bulk_list",
}


@dataclass(frozen=True)
class Page:
    """One address."""

    route: str
    name: str
    view: View
    permissions: tuple[str, ...]
    methods: tuple[str, ...]


_pages: list[Page] = []


def page(
    route: str, name: str, *permissions: str, methods: tuple[str, ...] = ("GET", "HEAD")
) -> Callable[[View], View]:
    """Make `view(request, **arguments of the route)` a page. Whoever sees it needs view_dashboard
    and `permissions`.

    Its address is `admin:django_delayq_dashboard_<name>`.
    """

    def decorate(view: View) -> View:
        _pages.append(Page(route, name, view, ("view_dashboard", *permissions), methods))
        return view

    return decorate


def action(route: str, name: str, *permissions: str) -> Callable[[View], View]:
    """Make `view(request, **arguments)` something that a form on a page does: a POST that ends on a
    page again.

    The view returns where to go. What a DelayQError says is shown there, or on the page that the
    form stood on.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def answer(request: HttpRequest, **arguments: Any) -> HttpResponseBase:
            try:
                return view(request, **arguments)
            except NotPermitted:
                raise
            except DelayQError as error:
                messages.error(request, str(error))
                return back(request)

        page(route, name, *permissions, methods=("POST",))(answer)
        return view

    return decorate


def urls(site: AdminSite) -> list[URLPattern]:
    """All addresses, for one admin site."""
    # Outside of a transaction of ATOMIC_REQUESTS: what an enqueue refuses is to be seen here, and a
    # record of what was done must not go when the page fails.
    views = {one: site.admin_view(_guarded(one, site)) for one in _pages}
    for alias in settings.DATABASES:
        views = {one: transaction.non_atomic_requests(alias)(view) for one, view in views.items()}
    return [path(one.route, view, name=_full(one.name)) for one, view in views.items()]


def url(request: HttpRequest, name: str, **arguments: Any) -> str:
    """The address of a page on the request's admin site."""
    return reverse(f"admin:{_full(name)}", kwargs=arguments, current_app=request.current_app)


def show(
    request: HttpRequest, template: str, title: str, *, status: int = 200, **context: Any
) -> TemplateResponse:
    """A page of ours inside the admin's frame. `template` lies in templates/django_delayq/."""
    site: AdminSite = request.delayq_site  # type: ignore[attr-defined]
    tabs = [(url(request, name), text, name) for name, text in TABS if _may(request, name)]
    frame = {
        **site.each_context(request),
        "opts": Dashboard._meta,
        "title": title,
        "delayq_tabs": tabs,
    }
    frame["delayq_may"] = {
        codename: request.user.has_perm(f"django_delayq.{codename}")
        for codename, _ in Dashboard._meta.permissions
    }
    name = str(request.resolver_match and request.resolver_match.url_name).removeprefix(_full(""))
    frame["delayq_tab"] = _UNDER.get(name, name)
    response = TemplateResponse(
        request, f"django_delayq/{template}", {**frame, **context}, status=status
    )
    response["Cache-Control"] = "no-store"
    return response


def back(request: HttpRequest, fallback: str = "changelist", **arguments: Any) -> HttpResponse:
    """To the page that the form names in `next`, else to the fallback."""
    target = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(
        target, {request.get_host()}, require_https=request.is_secure()
    ):
        target = url(request, fallback, **arguments)
    return HttpResponseRedirect(target)


def _may(request: HttpRequest, name: str) -> bool:
    one = next(page for page in _pages if page.name == name)
    return all(request.user.has_perm(f"django_delayq.{codename}") for codename in one.permissions)


def _full(name: str) -> str:
    return f"{Dashboard._meta.app_label}_{Dashboard._meta.model_name}_{name}"


def _guarded(one: Page, site: AdminSite) -> View:
    @wraps(one.view)
    def view(request: HttpRequest, **arguments: Any) -> HttpResponseBase:
        request.current_app, request.delayq_site = site.name, site  # type: ignore[attr-defined]
        if not _may(request, one.name):
            raise PermissionDenied
        if request.method not in one.methods:
            return HttpResponseNotAllowed(one.methods)
        try:
            return one.view(request, **arguments)
        except StoreError as error:
            return _redis_is_away(request, error)
        except (DataError, IntegrityError):
            raise  # A mistake of ours: the database is there.
        except Error as error:
            logger.exception("A page could not be shown: %s", request.path)
            title = gettext("The database does not answer")
            return show(
                request,
                "away.html",
                title,
                status=503,
                problem=overview_sql.problem_of(error),
                database=True,
            )

    return view


def _redis_is_away(request: HttpRequest, error: StoreError) -> HttpResponse:
    away = isinstance(error, StoreUnavailable | OutcomeUnknown)
    title = (
        gettext("Redis cannot be reached")
        if away
        else gettext("Redis gave an answer that nobody expected")
    )
    return show(request, "away.html", title, status=503, problem=error.problem)
