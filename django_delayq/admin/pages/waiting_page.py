"""Waiting messages in numbers: filters, how many fit, a sample, and the form that changes all of
them."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from ...core.exceptions import InvalidMessage, NotPermitted
from ...operators.topic_permission import permitted_topics
from ...operators.waiting_orders import WaitingPreview, preview_waiting, start_waiting
from ...tasks.redaction import call_in_one_line
from ..forms.waiting_form import WaitingChangeForm, WaitingFilters, initial_from
from ..site import may, register_action, register_page, show, url
from .bulk_page import is_anybody_there


@register_page("waiting/", "waiting")
def waiting_view(request: HttpRequest) -> HttpResponse:
    """The messages that fit the filters of the address."""
    filters = WaitingFilters(request.GET, permitted_topics(request.user))
    about, problem = _about(request, filters) if request.GET else (None, "")
    form = None
    if about is not None and may(request, "bulk_operate", "cancel_message"):
        form = WaitingChangeForm(
            filters.selection,
            about,
            initial=initial_from(request.GET),
            targets=permitted_topics(request.user, "bulk_operate", "cancel_message"),
        )
    return _page(request, filters, about, form, problem)


@register_action("waiting/start/", "waiting_start", "bulk_operate", "cancel_message")
def waiting_start_view(request: HttpRequest) -> HttpResponse:
    """Store the operation and go to its page. A form that is sent twice stores it once."""
    query = QueryDict(request.POST.get("query", ""))
    filters = WaitingFilters(query, permitted_topics(request.user))
    about, problem = _about(request, filters)
    if about is None:
        return _page(request, filters, None, None, problem)
    targets = permitted_topics(request.user, "bulk_operate", "cancel_message")
    form = WaitingChangeForm(filters.selection, about, request.POST, targets=targets)
    if form.is_valid():
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
            words = _("The operation is stored. A worker starts it within seconds.")
            messages.success(request, words)
            return redirect(url(request, "bulk", pk=operation.pk))
    return _page(request, filters, about, form, problem)


def _about(request: HttpRequest, filters: WaitingFilters) -> tuple[WaitingPreview | None, str]:
    """What fits, or why these filters cannot be used."""
    if not filters.is_valid():
        return None, ""
    try:
        return preview_waiting(request.user, filters.selection), ""
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
) -> HttpResponse:
    may_see = may(request, "view_payload")
    return show(
        request,
        "waiting.html",
        _("Waiting messages"),
        filters=filters,
        about=about,
        problem=problem,
        form=form if about and (about.count or about.more) else None,
        rows=[
            (message, call_in_one_line(message) if may_see else "")
            for message in (about.sample if about else ())
        ],
        nobody=form is not None and not is_anybody_there(),
    )
