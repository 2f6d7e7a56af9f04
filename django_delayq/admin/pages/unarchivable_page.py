"""Messages that the archive refused: the list, an entry, and the button that tries again."""

from __future__ import annotations

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...archive import unarchivable
from ...core.present import amount
from ...models import UnarchivableEntry
from ...operators import operations
from ...operators.topic_permission import permitted_topics
from ..keyset import newest_first
from ..site import back, enter_topic, register_action, register_page, show


@register_page("unarchivable/", "unarchivable")
def unarchivable_view(request: HttpRequest) -> HttpResponse:
    """All of them, the newest first."""
    rows, links = newest_first(request, seen_entries(request))
    return show(
        request,
        "unarchivable.html",
        _("Unarchivable entries"),
        refreshed=True,
        rows=[(row, unarchivable.entry_view(row), _refusal(row)) for row in rows],
        links=links,
        now=timezone.now(),
    )


@register_page("unarchivable/<int:pk>/", "unarchivable_entry")
def unarchivable_entry_view(request: HttpRequest, pk: int) -> HttpResponse:
    """All facts about an entry."""
    row = seen_entries(request).filter(pk=pk).first()
    if row is None:
        raise Http404(
            _("There is no unarchivable entry %(pk)s. It was archived again, or it never existed.")
            % {"pk": pk}
        )
    enter_topic(request, row.topic)
    return show(
        request,
        "unarchivable_entry.html",
        _("Message %(id)s") % {"id": row.message_id},
        now=timezone.now(),
        row=row,
        shown=unarchivable.entry_view(row),
        refusal=_refusal(row),
    )


@register_action("unarchivable/<int:pk>/archive/", "unarchivable_archive", "replay_message")
def unarchivable_archive_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Try again to make it a row of the archive."""
    return _report(
        request, operations.archive_again(request.user, pk, reason=request.POST.get("reason", ""))
    )


@register_action(
    "unarchivable/archive/", "unarchivable_archive_all", "replay_message", "bulk_operate"
)
def unarchivable_archive_all_view(request: HttpRequest) -> HttpResponse:
    """The same with all of them."""
    return _report(
        request, operations.archive_again(request.user, reason=request.POST.get("reason", ""))
    )


def seen_entries(request: HttpRequest) -> QuerySet[UnarchivableEntry]:
    """Those of topics that the user may see."""
    topics = permitted_topics(request.user)
    rows: QuerySet[UnarchivableEntry] = UnarchivableEntry.objects.all()
    return rows if topics is None else rows.filter(topic__in=topics)


def _report(request: HttpRequest, done: unarchivable.ArchivedAgain) -> HttpResponse:
    if done.count:
        words = ngettext(
            "%(number)s entry is archived.", "%(number)s entries are archived.", done.count
        )
        messages.success(request, words % {"number": amount(done.count)})
    if refused := sum(done.refused.values()):
        words = ngettext(
            "%(number)s entry was refused again: %(errors)s.",
            "%(number)s entries were refused again: %(errors)s.",
            refused,
        )
        messages.error(
            request, words % {"number": amount(refused), "errors": ", ".join(done.refused)}
        )
    return back(request, "unarchivable")


def _refusal(row: UnarchivableEntry) -> str:
    """The class of the error. Its message may quote the arguments."""
    return str(row.error.partition("(")[0])
