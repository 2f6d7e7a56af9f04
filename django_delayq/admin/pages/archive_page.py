"""The archive: a list with filters, a row, and the actions on a dead letter."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import msgspec
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _

from ...archive.archive_rows import reported_in
from ...archive.facets import facet_rows, facets_of, has_facets
from ...archive.row_arguments import read_arguments, visible_arguments
from ...archive.search import ArchivePage, page_of
from ...archive.selection import Selection
from ...core.exceptions import InvalidMessage
from ...core.task_report import TaskProgress
from ...models import ArchivedMessage, Final
from ...models.one_statement import read_together
from ...operators import operations, recent_actions
from ...operators.topic_permission import is_visible, permitted_topics
from ...tasks import registry
from ...tasks.arguments import Arguments
from ..csv_export import CSV
from ..downloads import FileFormat, archive_file
from ..facet_links import facet_links
from ..forms.archive_form import ArchiveForm, query_of
from ..forms.message_forms import ArgumentsForm
from ..runs import shown_run
from ..site import back, enter_topic, may, register_action, register_page, show, url
from .unarchivable_page import seen_entries

#: Only with view_payload.
_PAYLOAD = ("body", "headers", "traceback", "result")
#: Fields of a row that are not among its facts.
_HIDDEN = {*_PAYLOAD, "history", "error_message"}
#: pyarrow comes with the extra `arrow`.
_HAS_PARQUET = find_spec("pyarrow") is not None
#: Other rows of the same id that a row's page names.
_LIVES = 20


# The list


@register_page("archive/", "archive")
def archive_view(request: HttpRequest) -> HttpResponse:
    """One page of the archive."""
    form, found = ArchiveForm(request.GET, permitted_topics(request.user)), None
    before, after = request.GET.get("before"), request.GET.get("after")
    # What the page shows beside its rows is read together with them.
    beside, counts = [seen_entries(request).values_list("pk")[:1]], False
    if _is_permitted(request, form):
        counts = not before and not after and has_facets(form.selection)
        beside += [facet_rows(form.selection)] if counts else []
        selection = limited(request, form.selection)
        try:
            found = page_of(selection, before=before, after=after, beside=beside)
        except InvalidMessage as error:
            form.add_error(None, str(error))
    context: dict[str, Any] = {
        "form": form,
        "found": found,
        "now": timezone.now(),
        "unarchivable": bool(found.beside[0] if found else beside[0]),
    }
    if found:
        selection = form.selection
        context |= {
            "links": _links(request, found),
            "query": query_of(selection),
            "is_everything": selection.is_everything,
            "can_select": may(request, "bulk_operate")
            and (may(request, "replay_message") or may(request, "discard_message")),
            "went_newer": bool(after and not before),
            "has_parquet": _HAS_PARQUET,
            "here": request.GET.urlencode(),
        }
        if counts:
            facets = facets_of(limited(request, selection), found.beside[1])
            context |= {"facets": facets, "facet_links": facet_links(facets, request.GET)}
        # A search for an argument cannot be a bulk operation.
        if selection.state in ("", Final.DEAD) and not selection.argument:
            context["dead_query"] = query_of(selection.narrowed(state=Final.DEAD, open=True))
    return show(request, "archive.html", _("Archive"), **context)


@register_page("archive/csv/", "archive_csv", "download_messages")
def archive_csv_view(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """All rows that match the filters, for a spreadsheet."""
    return _file(request, CSV)


@register_page("archive/parquet/", "archive_parquet", "download_messages")
def archive_parquet_view(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """The same for tools of analysis. It needs pyarrow."""
    if not _HAS_PARQUET:
        raise Http404(_("Parquet files need pyarrow: pip install 'django-delayq[arrow]'."))
    from ..parquet_export import PARQUET

    return _file(request, PARQUET)


def _file(request: HttpRequest, file_format: FileFormat) -> HttpResponse | StreamingHttpResponse:
    form = ArchiveForm(request.GET, permitted_topics(request.user))
    if _is_permitted(request, form):
        selection = limited(request, form.selection)
        return archive_file(request, selection, file_format, may(request, "view_payload"))
    return show(request, "archive.html", _("Archive"), form=form, found=None, status=400)


def limited(request: HttpRequest, selection: Selection) -> Selection:
    """The selection without the topics that the user may not see: one condition of the query."""
    topics = permitted_topics(request.user)
    return selection if topics is None else selection.narrowed(topics=tuple(sorted(topics)))


def _is_permitted(request: HttpRequest, form: ArchiveForm) -> bool:
    """Whether the filters are valid, and this user may use them."""
    if not form.is_valid():
        return False
    if form.selection.argument and not may(request, "view_payload"):
        form.add_error(
            "q", _("To search for an argument you need the permission to see arguments.")
        )
    elif (form.selection.argument or form.selection.key_prefix) and not (
        form.selection.since or form.selection.until
    ):
        words = _("A search for an argument or the beginning of a key needs a period. Choose one.")
        form.add_error("q", words)
    return not form.errors


def _links(request: HttpRequest, found: ArchivePage) -> dict[str, str]:
    """Query strings of the pages around this one; the filters stay."""
    query = request.GET.copy()
    moved = bool(query.pop("before", None)) | bool(query.pop("after", None))
    links = {"newest": f"?{query.urlencode()}"} if moved else {}
    for name, parameter, cursor in (
        ("older", "before", found.older),
        ("newer", "after", found.newer),
    ):
        if cursor:
            there = query.copy()
            there[parameter] = cursor
            links[name] = f"?{there.urlencode()}"
    return links


# One row


@register_page("archive/<int:pk>/", "archived")
def archived_view(request: HttpRequest, pk: int) -> HttpResponse:
    """All facts about a row."""
    row, form = _row(request, pk), None
    is_open = row.state == Final.DEAD and not row.replayed_at
    may_edit = may(request, "replay_message", "edit_message", "view_payload")
    if request.GET.get("edit") and is_open and may_edit:
        form = ArgumentsForm(row.task, _given(row), topic=row.topic)
    return _page(request, row, form)


@register_action("archive/<int:pk>/replay/", "archived_replay", "replay_message")
def archived_replay_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Send it again, with other arguments when the form has them."""
    form, reason = None, request.POST.get("reason", "")
    if "edited" in request.POST:
        operations.require(request.user, "edit_message", "view_payload")
        row = _row(request, pk)
        form = ArgumentsForm(row.task, _given(row), request.POST, topic=row.topic)
        if not form.is_valid():
            return _page(request, row, form)
    operations.check_reason(reason)
    done = operations.replay_one(
        request.user,
        pk,
        arguments=form.arguments() if form else None,
        reason=reason,
    )
    there = f"{url(request, 'find')}?q={done.replayed_by.hex if done.replayed_by else ''}"
    link = format_html('<a href="{}">{}</a>', there, done.replayed_by)
    messages.success(request, format_html(_("Replayed as the message {link}."), link=link))
    return back(request, "archived", pk=pk)


@register_action("archive/<int:pk>/discard/", "archived_discard", "discard_message")
def archived_discard_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Discard it: it needs no replay."""
    operations.discard_one(request.user, pk, reason=request.POST.get("reason", ""))
    messages.success(request, _("The dead letter is discarded: it needs no replay."))
    return back(request, "archived", pk=pk)


def _row(request: HttpRequest, pk: int) -> ArchivedMessage:
    row: ArchivedMessage | None = ArchivedMessage.objects.filter(pk=pk).first()
    if row is None or not is_visible(request.user, row.topic):
        raise Http404(
            _("The archive has no row %(pk)s. It was pruned, or it never existed.") % {"pk": pk}
        )
    enter_topic(request, row.topic)
    if not may(request, "view_payload"):
        for name in _PAYLOAD:  # as if it had never been read
            del row.__dict__[name]
    return row


def _page(request: HttpRequest, row: ArchivedMessage, form: ArgumentsForm | None) -> HttpResponse:
    rows = limited(request, Selection()).rows().only("pk", "state", "enqueued_at", "finished_at")
    lives = rows.filter(message_id=row.message_id).exclude(pk=row.pk).order_by("-enqueued_at")
    replays = rows.filter(message_id=row.replayed_by, replay_of=row.pk)
    handled = recent_actions.of_dead_letter(row) if row.replayed_at or row.discarded_at else ()
    other, ended, *actions = read_together(
        lives[:_LIVES], replays[:_LIVES] if row.replayed_by else rows.none(), *handled
    )
    handled_by = {action.pk: action for found in actions for action in found}
    task = registry.by_name.get(row.task)
    try:
        runs = row.runs
    except ValueError:  # a damaged history hides no page
        runs = []
    context: dict[str, Any] = {
        "facts": {
            field.attname: getattr(row, field.attname)
            for field in row._meta.concrete_fields
            if field.name not in _HIDDEN
        },
        "now": timezone.now(),
        "form": form,
        "is_declared": task is not None,
        # The message's own, else the task's. Not the task itself: a template would call it.
        "max_attempts": row.max_attempts or (task.max_attempts if task else None),
        "is_open": row.state == Final.DEAD and not row.replayed_at and not row.discarded_at,
        "runs": [shown_run(run, may(request, "view_payload")) for run in runs],
        "handled_by": [handled_by[pk] for pk in sorted(handled_by, reverse=True)],
        # How the message that replays this row has ended.
        "died_again": ended,
        "lives": sorted(other, key=lambda life: life.enqueued_at, reverse=True),
    }
    if may(request, "view_payload"):
        try:
            seen = visible_arguments(row)
            content, redaction = {"args": seen.args, "kwargs": seen.kwargs}, seen.redaction
        except (msgspec.MsgspecError, UnicodeError):
            content, redaction = {"text": row.body}, ""
        context |= {
            "content": content,
            "headers": row.headers,
            "error_message": row.error_message,
            "traceback": row.traceback,
            "redaction": redaction,
            **_reported(row),
        }
    return show(
        request, "archived.html", _("Message %(id)s") % {"id": row.message_id.hex}, **context
    )


def _reported(row: ArchivedMessage) -> dict[str, Any]:
    """What the task has reported: its result as JSON text, and how far it came."""
    try:
        kept = reported_in(row.result)
        progress = msgspec.convert(kept.get("progress"), TaskProgress | None)
    except ValueError:  # damaged: hides no page
        return {}
    return {
        "result": json.dumps(kept["result"]) if "result" in kept else "",
        "result_redacted": kept.get("redaction"),
        "progress": progress,
    }


def _given(row: ArchivedMessage) -> Arguments | None:
    """The arguments that a form begins with, hidden ones too: the form does not show these."""
    try:
        return read_arguments(row.message_id, row.body).arguments
    except (msgspec.MsgspecError, UnicodeError):
        return None
