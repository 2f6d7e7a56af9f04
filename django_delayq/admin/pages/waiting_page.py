"""Waiting messages in numbers: filters, how many fit, a sample, and the form that changes all of
them."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from ...core.exceptions import InvalidMessage, NotPermitted
from ...operators import bulk
from ...operators.bulk_run import decoded
from ...operators.topic_permission import permitted_topics
from ...operators.waiting_list import WaitingList, WaitingPreview, list_waiting, preview_waiting
from ...operators.waiting_orders import start_waiting
from ...tasks.redaction import call_in_one_line
from ..forms.edit_fields import edit_initial
from ..forms.waiting_form import WaitingChangeForm, WaitingFilters, initial_from
from ..site import may, register_action, register_page, show, url
from .bulk_page import is_anybody_there

#: Seconds that a page counts messages when it is asked to count them all.
COUNTS_FOR = 8.0


@register_page("waiting/", "waiting")
def waiting_view(request: HttpRequest) -> HttpResponse:
    """The messages that fit the filters of the address. With `count=all` they are counted for some
    seconds."""
    filters = WaitingFilters(request.GET, permitted_topics(request.user))
    about, problem = None, ""
    listed: WaitingList | None = None
    if request.GET:
        seconds = COUNTS_FOR if request.GET.get("count") == "all" else 0.0
        about, problem = _about(request, filters, seconds)
    if about is not None and (after := request.GET.get("after", "")):
        try:
            listed = list_waiting(request.user, filters.selection, after)
        except InvalidMessage as error:
            about, problem = None, str(error)
    form = None
    if about is not None and _may_order(request):
        initial = {**initial_from(request.GET), **_initial_edit(request)}
        form = _change_form(request, filters, about, initial=initial)
    return _page(request, filters, about, form, problem, listed)


@register_action("waiting/start/", "waiting_start", "bulk_operate")
def waiting_start_view(request: HttpRequest) -> HttpResponse:
    """Store the operation and go to its page. A form that is sent twice stores it once."""
    if not _may_order(request):
        raise PermissionDenied
    query = QueryDict(request.POST.get("query", ""))
    filters = WaitingFilters(query, permitted_topics(request.user))
    about, problem = _about(request, filters)
    if about is None:
        return _page(request, filters, None, None, problem)
    form = _change_form(request, filters, about, request.POST)
    if form.is_valid() and not form.only_shows:
        try:
            operation = start_waiting(
                request.user,
                form.change_asked,
                filters.selection,
                reason=form.cleaned_data["reason"],
                dry_run=form.dry_run,
                token=form.cleaned_data["token"],
            )
        except InvalidMessage as error:
            form.add_error(None, str(error))
        else:
            words = _("Queued. A worker starts it within seconds.")
            messages.success(request, words)
            return redirect(url(request, "bulk", pk=operation.pk))
    return _page(request, filters, about, form, problem)


def _may_order(request: HttpRequest) -> bool:
    return may(request, "bulk_operate") and (
        may(request, "cancel_message") or may(request, "edit_message", "view_payload")
    )


def _change_form(
    request: HttpRequest,
    filters: WaitingFilters,
    about: WaitingPreview,
    *given: Any,
    **options: Any,
) -> WaitingChangeForm:
    return WaitingChangeForm(
        filters.selection,
        about,
        *given,
        targets=permitted_topics(request.user, "bulk_operate", "cancel_message"),
        may_change=may(request, "cancel_message"),
        may_edit=may(request, "edit_message", "view_payload"),
        **options,
    )


def _initial_edit(request: HttpRequest) -> dict[str, str]:
    """The edit of the operation that the address names: the same once more."""
    again = request.GET.get("again", "")
    if not again.isdecimal() or not may(request, "view_payload"):
        return {}
    try:
        return edit_initial(decoded(bulk.get(int(again[:18]), request.user).options))
    except InvalidMessage:  # it is gone, or not this user's
        return {}


def _about(
    request: HttpRequest, filters: WaitingFilters, seconds: float = 0.0
) -> tuple[WaitingPreview | None, str]:
    """What fits, or why these filters cannot be used."""
    if not filters.is_valid():
        return None, ""
    try:
        return preview_waiting(request.user, filters.selection, seconds=seconds), ""
    except NotPermitted:
        raise
    except InvalidMessage as error:
        return None, str(error)


def _page(
    request: HttpRequest,
    filters: WaitingFilters,
    about: WaitingPreview | None,
    form: WaitingChangeForm | None,
    problem: str,
    listed: WaitingList | None = None,
) -> HttpResponse:
    """`listed`: the page of the list; None: the first one."""
    listed = listed or (about.first if about else WaitingList((), ""))
    may_see = may(request, "view_payload")
    query = filters.query
    return show(
        request,
        "waiting.html",
        _("Waiting messages"),
        filters=filters,
        about=about,
        problem=problem,
        form=form if about and (about.count or about.more) else None,
        rows=[
            (message, call_in_one_line(message) if may_see else "") for message in listed.messages
        ],
        can_tick=_may_order(request) and not (about and len(listed.messages) == about.count == 1),
        kept=[
            (name, value)
            for name, value in query.items()
            if name not in ("id", "ids", "count", "again", "after") and value
        ],
        all_that_fit=_without(query, "id", "ids", "again", "after"),
        further=_at(query, listed.further) if listed.further else "",
        start=_without(query, "after") if query.get("after") else "",
        count_all=_count_all(request) if about and about.more else "",
        nobody=form is not None and not is_anybody_there(),
    )


def _without(query: QueryDict, *names: str) -> str:
    """The query string of the same filters, without these."""
    rest = query.copy()
    for name in names:
        rest.pop(name, None)
    return f"?{rest.urlencode()}"


def _at(query: QueryDict, after: str) -> str:
    """The query string of the same filters, further on in the list."""
    rest = query.copy()
    rest["after"] = after
    return f"?{rest.urlencode()}"


def _count_all(request: HttpRequest) -> str:
    """The query string of the same page that counts for some seconds."""
    query = request.GET.copy()
    query["count"] = "all"
    return f"?{query.urlencode()}" if request.method == "GET" else ""
