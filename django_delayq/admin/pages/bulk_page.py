"""Bulk operations: the list, the form that starts an operation, its progress, cancelling."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _

from ...archive.selection import Selection
from ...core.exceptions import InvalidMessage, NotPermitted, StoreError
from ...core.present import word
from ...models import BulkKind, BulkMessage, BulkOperation, BulkStatus
from ...models.one_statement import read_together
from ...operators import bulk as service
from ...operators.bulk_run import MOST_LISTED, PERMISSIONS, decoded
from ...operators.operations import require
from ...operators.topic_permission import permitted_topics
from ...operators.waiting_orders import SAMPLE
from ...operators.waiting_selection import WaitingSelection
from ...stats import overview
from .. import downloads
from ..csv_export import CSV
from ..forms import waiting_form
from ..forms.archive_form import query_of, selection_from
from ..forms.bulk_form import BulkForm
from ..forms.edit_fields import edit_initial
from ..keyset import newest_first
from ..site import back, may, register_action, register_page, show, url

#: Of the file of a list of waiting messages.
CSV_COLUMNS = ("message_id", "topic", "task", "key", "due_at", "new_due_at", "skipped")


@register_page("bulk/", "bulk_list")
def bulk_list_view(request: HttpRequest) -> HttpResponse:
    """All of them, the newest first."""
    rows, links = newest_first(request, service.seen_by(request.user))
    return show(
        request,
        "bulk_list.html",
        _("Bulk operations"),
        refreshed=True,
        lines=[(operation, service.progress(operation)) for operation in rows],
        links=links,
        now=timezone.now(),
    )


@register_page("bulk/<int:pk>/", "bulk")
def bulk_view(request: HttpRequest, pk: int) -> HttpResponse:
    """The progress of an operation."""
    operation = _found(request, pk)
    again = ended_since = ""
    kind = BulkKind(operation.kind) if operation.kind in BulkKind.values else None
    if kind is not None and kind.is_of_waiting:
        return _waiting_page(request, operation)
    with suppress(InvalidMessage):  # a newer version may have written what this one does not know
        selection = Selection.decode(operation.selection)
        again = f"kind={operation.kind}&{query_of(selection)}&again={operation.pk}"
        if operation.kind == BulkKind.REPLAY and operation.started_at and operation.count:
            same = Selection(topic=selection.topic, task=selection.task, since=operation.started_at)
            ended_since = query_of(same)
    return _progress_page(
        request,
        operation,
        # The address of the form for the same operation.
        again=f"{url(request, 'bulk_new')}?{again}" if again else "",
        # The archive's filters for messages of that task and topic that ended since a replay began.
        ended_since=ended_since,
        **_lists(_listed(request, operation)),
    )


@register_page("bulk/<int:pk>/csv/", "bulk_csv", "download_messages")
def bulk_csv_view(request: HttpRequest, pk: int) -> StreamingHttpResponse:
    """The messages of an operation: all, those that were changed, or those that were skipped."""
    operation = _found(request, pk)
    rows, only = _listed(request, operation).order_by("pk"), request.GET.get("only")
    if only == "skipped":
        rows = rows.exclude(skipped="")
    elif only == "changed":
        rows = _dealt_with(operation, rows).filter(skipped="")
    return downloads.streamed(
        request,
        rows.iterator(chunk_size=downloads.ROWS),
        CSV_COLUMNS,
        CSV,
        f"operation-{pk}",
        selection=f"messages of operation {pk}",
        bulk_operation=operation,
    )


def _waiting_page(request: HttpRequest, operation: BulkOperation) -> HttpResponse:
    """The progress of an operation on waiting messages, with the first messages of its list."""
    again, options = "", decoded(operation.options)
    with suppress(InvalidMessage):  # a newer version may have written what this one does not know
        given = waiting_form.initial_of(operation.kind, options)
        selection = WaitingSelection.decode(operation.selection)
        if not selection.argument or may(request, "view_payload"):
            query = waiting_form.waiting_query(selection)
            given |= {"again": str(operation.pk)} if "edit" in options else {}
            again = f"{url(request, 'waiting')}?{query}&{urlencode(given)}"
    return _progress_page(
        request,
        operation,
        again=again,
        shift=abs(options.get("by", 0)),
        earlier=options.get("by", 0) < 0,
        **_lists(_dealt_with(operation, _listed(request, operation))),
    )


def _dealt_with(operation: BulkOperation, rows: QuerySet[BulkMessage]) -> QuerySet[BulkMessage]:
    """Those whose end is known: waiting messages are listed before they are changed."""
    if operation.kind in BulkKind.values and BulkKind(operation.kind).is_of_waiting:
        return rows.filter(pk__lte=operation.position)
    return rows


def _lists(rows: QuerySet[BulkMessage]) -> dict[str, Any]:
    """The first messages that were changed, and the first that were skipped."""
    rows = rows.order_by("pk")
    changed, skipped = read_together(
        rows.filter(skipped="")[:SAMPLE], rows.exclude(skipped="")[:SAMPLE]
    )
    return {
        "sample": sorted(changed, key=lambda row: row.pk),
        "left_out": sorted(skipped, key=lambda row: row.pk),
        "most_listed": MOST_LISTED,
    }


def _progress_page(request: HttpRequest, operation: BulkOperation, **context: Any) -> HttpResponse:
    pk = operation.pk
    return show(
        request,
        "bulk.html",
        _("Bulk operation %(pk)s: %(kind)s") % {"pk": pk, "kind": word(operation.kind)},
        now=timezone.now(),
        operation=operation,
        progress=service.progress(operation),
        nobody=operation.status == BulkStatus.WAITING and not is_anybody_there(),
        **context,
    )


def _listed(request: HttpRequest, operation: BulkOperation) -> QuerySet[BulkMessage]:
    """The messages of an operation that the user may see."""
    topics = permitted_topics(request.user)
    rows: QuerySet[BulkMessage] = operation.messages.all()
    return rows if topics is None else rows.filter(topic__in=topics)


def _found(request: HttpRequest, pk: int) -> BulkOperation:
    try:
        return service.get(pk, request.user)
    except InvalidMessage as error:
        raise Http404(str(error)) from None


@register_page("bulk/new/", "bulk_new", "bulk_operate")
def bulk_new_view(request: HttpRequest) -> HttpResponse:
    """A preview of the messages, and the form that starts the operation."""
    if "list" in request.GET and "id" not in request.GET:
        messages.warning(request, _("No message is selected. Tick messages in the list first."))
        return redirect(f"{url(request, 'archive')}?{QueryDict(request.GET['list']).urlencode()}")
    try:
        kind, selection = _asked(request, request.GET)
        return _form(request, _bulk_form(request, kind, selection, initial=_initial(request)))
    except NotPermitted:
        raise
    except InvalidMessage as error:
        return show(request, "bulk_new.html", _("Bulk operation"), problem=str(error))


@register_action("bulk/start/", "bulk_start", "bulk_operate")
def bulk_start_view(request: HttpRequest) -> HttpResponse:
    """Store the operation and go to its page. A form that is sent twice stores it once."""
    filters = QueryDict(request.POST.get("query", ""), mutable=True)
    filters["kind"] = request.POST.get("kind", "")
    kind, selection = _asked(request, filters)
    form = _bulk_form(request, kind, selection, request.POST)
    if not form.is_valid() or form.only_shows:
        return _form(request, form)
    try:
        operation = service.start(request.user, kind, selection, **form.options)
    except InvalidMessage as error:
        form.add_error(None, str(error))
        return _form(request, form)
    messages.success(request, _("Queued. A worker starts it within seconds."))
    return redirect(url(request, "bulk", pk=operation.pk))


@register_action("bulk/<int:pk>/cancel/", "bulk_cancel", "bulk_operate")
def bulk_cancel_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop it. Messages that are already processed stay as they are."""
    service.cancel(request.user, pk)
    messages.success(
        request,
        _(
            "Bulk operation %(pk)s is cancelled. Messages that are already processed "
            "stay as they are."
        )
        % {"pk": pk},
    )
    return back(request, "bulk", pk=pk)


def _asked(request: HttpRequest, query: QueryDict) -> tuple[str, Selection]:
    """Kind and selection of an address or a form. Raises NotPermitted when this user may not do it,
    and InvalidMessage."""
    kind, selection = query.get("kind", ""), selection_from(query)
    needed = [PERMISSIONS[BulkKind(kind)]] if kind in service.DEAD_LETTER_KINDS else []
    require(request.user, "bulk_operate", *needed, topic=selection.topic)
    service.check_order(kind, selection)
    return kind, selection


def _bulk_form(
    request: HttpRequest, kind: str, selection: Selection, *given: Any, **options: Any
) -> BulkForm:
    return BulkForm(
        kind,
        selection,
        *given,
        topics=permitted_topics(request.user),
        may_edit=may(request, "edit_message", "view_payload"),
        **options,
    )


def _initial(request: HttpRequest) -> dict[str, Any]:
    """What the form shows of the operation that the address names: the same once more."""
    if not request.GET.get("again", "").isdecimal() or not may(request, "view_payload"):
        return {}
    try:
        options = decoded(service.get(int(request.GET["again"][:18]), request.user).options)
    except InvalidMessage:  # it is gone, or not this user's
        return {}
    known = {name: options[name] for name in ("delay", "rate") if options.get(name)}
    return {**known, **edit_initial(options)}


def _form(request: HttpRequest, form: BulkForm) -> HttpResponse:
    titles = {
        BulkKind.REPLAY: _("Replay dead letters"),
        BulkKind.DISCARD: _("Discard dead letters"),
        BulkKind.PURGE: _("Purge topic %(topic)s") % {"topic": form.selection.topic},
    }
    kind = BulkKind(form.kind_asked)
    return show(
        request,
        "bulk_new.html",
        titles[kind],
        form=form,
        kind=kind,
        words=form.selection.in_words(),
        about=form.about,
        query=query_of(form.selection),
        nobody=not is_anybody_there(),
    )


def is_anybody_there() -> bool:
    """Whether a living worker runs bulk operations. True while Redis is away: it is not known."""
    try:
        return any(
            worker.alive and not worker.draining and "bulk" in worker.services
            for worker in overview.worker_statuses()
        )
    except StoreError:
        return True
