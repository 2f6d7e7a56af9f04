"""One live message: its facts, its runs, and the actions on it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _

from ...core.exceptions import InvalidMessage, MessageNotFound
from ...core.message import State
from ...core.times import from_ms, in_words
from ...operators import message_search, operations, recent_actions
from ...operators.topic_permission import is_visible
from ...stats.overview import obstacles
from ...store import get_store
from ...tasks import registry
from ...tasks.redaction import shown_message
from ..forms.message_forms import ArgumentsForm, CancelForm, WhenForm
from ..runs import shown_run
from ..site import back, may, register_action, register_page, show, url

#: Characters of arguments whose form is part of the page.
LONG = 100_000
_WAITING = (State.DELAYED, State.READY)
#: Fields of a message that anybody may see.
_FACTS = (
    "id", "topic", "task", "key", "priority", "attempt", "crashes", "enqueued_at", "due_at",
    "expires_at",
)  # fmt: skip
_ROUTE = "topics/<str:topic>/messages/<str:message_id>/"


@register_page(_ROUTE, "message")
def message_view(
    request: HttpRequest,
    topic: str,
    message_id: str,
    *,
    edit_form: ArgumentsForm | None = None,
    when_form: WhenForm | None = None,
    cancel_form: CancelForm | None = None,
) -> HttpResponse:
    """Its page while it is live, and later the page of its row in the archive. The forms are those
    that were sent and refused."""
    try:
        found = message_search.live(topic, message_id)
    except InvalidMessage as error:  # no topic of ours (any more), or no id
        return _ended(request, topic, message_id, str(error))
    if found is None:
        return _ended(request, topic, message_id, "")
    shown = found.message
    may_see = may(request, "view_payload")
    waiting = shown.state in _WAITING
    task = registry.by_name.get(shown.task)
    context: dict[str, Any] = {
        "edit_form": edit_form,
        "when_form": when_form or WhenForm(),
        "cancel_form": cancel_form or CancelForm(),
        "obstacles": obstacles(topic) if waiting else None,
        "actions": recent_actions.of_message(shown.id),
        "now": timezone.now(),
        "waiting": waiting,
        "running": not waiting,
        "declared": task is not None,
        "facts": {
            **{name: getattr(shown, name) for name in _FACTS},
            "most_attempts": task.max_attempts if task else None,
            "state": shown.state.value,
            "replay_of": shown.replay_of,
            "outbox": found.outbox,
        },
        "runs": [shown_run(run, may_see) for run in shown.runs],
    }
    if may_see:
        seen = shown_message(shown)
        context |= {
            "content": {"args": seen.args, "kwargs": seen.kwargs},
            "headers": shown.headers,
            "problem": found.problem,
            "progress": found.progress,
        }
        may_edit = may(request, "edit_message")
        if may_edit and waiting and context["declared"] and not found.problem and edit_form is None:
            form = ArgumentsForm(shown.task, (shown.args, shown.kwargs), topic=topic)
            # A form of a megabyte is sent to those only who ask for it.
            is_long = sum(len(str(field.initial)) for field in form.fields.values()) > LONG
            context["is_long"] = is_long and not request.GET.get("edit")
            context["edit_form"] = None if context["is_long"] else form
    return show(
        request,
        "message.html",
        _("Message %(id)s") % {"id": shown.id},
        refreshed=True,
        undecodable=found.problem,
        **context,
    )


@register_action(f"{_ROUTE}cancel/", "message_cancel", "cancel_message")
def message_cancel_view(request: HttpRequest, topic: str, message_id: str) -> HttpResponse:
    """Cancel it."""
    form = CancelForm(request.POST)
    if not form.is_valid():
        return message_view(request, topic, message_id, cancel_form=form)
    operations.cancel(request.user, topic, message_id, reason=form.cleaned_data["reason"])
    messages.success(request, _("Message %(id)s is cancelled.") % {"id": message_id})
    return redirect(url(request, "topic", topic=topic))


@register_action(f"{_ROUTE}cancel-running/", "message_cancel_running", "cancel_message")
def message_cancel_running_view(request: HttpRequest, topic: str, message_id: str) -> HttpResponse:
    """Cancel it while it runs."""
    form = CancelForm(request.POST)
    if not form.is_valid():
        return message_view(request, topic, message_id, cancel_form=form)
    reason = form.cleaned_data["reason"]
    operations.cancel_running(request.user, topic, message_id, reason=reason)
    messages.success(request, _("Message %(id)s is cancelled.") % {"id": message_id})
    return redirect(url(request, "topic", topic=topic))


@register_action(f"{_ROUTE}run-now/", "message_run_now", "cancel_message")
def message_run_now_view(request: HttpRequest, topic: str, message_id: str) -> HttpResponse:
    """Make it due at once."""
    operations.run_now(request.user, topic, message_id, reason=_reason(request))
    _say_due(request, topic)
    return back(request, "message", topic=topic, message_id=message_id)


@register_action(f"{_ROUTE}reschedule/", "message_reschedule", "cancel_message")
def message_reschedule_view(request: HttpRequest, topic: str, message_id: str) -> HttpResponse:
    """Give it another due time."""
    given = request.POST.copy()
    if quick := given.get("quick"):  # a button with a time of its own
        given.update({"delay": quick, "delay_unit": "1", "at": ""})
    form = WhenForm(given)
    if not form.is_valid():
        return message_view(request, topic, message_id, when_form=form)
    due_at = form.cleaned_data["at"] or _now() + timedelta(seconds=form.cleaned_data["delay"])
    due_at = operations.reschedule(request.user, topic, message_id, due_at, reason=_reason(request))
    away = in_words((due_at - _now()).total_seconds())
    messages.success(request, _("The message is due in %(time)s.") % {"time": away})
    return back(request, "message", topic=topic, message_id=message_id)


@register_action(f"{_ROUTE}edit/", "message_edit", "edit_message", "view_payload")
def message_edit_view(request: HttpRequest, topic: str, message_id: str) -> HttpResponse:
    """Give it other arguments."""
    found = message_search.live(topic, message_id)
    if found is None:
        raise MessageNotFound(f"Message {message_id} is not live any more: it was not edited.")
    form = ArgumentsForm(
        found.message.task,
        (found.message.args, found.message.kwargs),
        request.POST,
        topic=topic,
    )
    if found.problem or not form.is_valid():
        return message_view(request, topic, message_id, edit_form=form)
    try:
        operations.edit(request.user, topic, message_id, form.arguments(), reason=_reason(request))
    except InvalidMessage as error:
        form.add_error(None, str(error))
        return message_view(request, topic, message_id, edit_form=form)
    messages.success(request, _("The arguments of the message are changed."))
    return back(request, "message", topic=topic, message_id=message_id)


def _say_due(request: HttpRequest, topic: str) -> None:
    """Tell the user when a message that is due now will start."""
    held = obstacles(topic)
    if held.pause and held.pause.until:
        until = timezone.localtime(held.pause.until).strftime("%Y-%m-%d %H:%M:%S")
        words = _(
            "The message is due now, but its topic is paused until %(until)s. It runs after that."
        ) % {"until": until}
    elif held.pause:
        words = _(
            "The message is due now, but its topic is paused. It runs when somebody "
            "resumes the topic."
        )
    elif held.unserved:
        words = _(
            "The message is due now, but no worker serves its topic. Start a worker to run it."
        )
    else:
        messages.success(request, _("The message is due now. It runs as soon as a worker is free."))
        return
    messages.warning(request, words)


def _ended(request: HttpRequest, topic: str, message_id: str, problem: str) -> HttpResponse:
    """The page of a message that is not live: its newest row, or an explanation."""
    try:
        row = message_search.archived_row(message_id)
    except InvalidMessage as error:
        return show(request, "not_there.html", _("No such message"), status=404, words=str(error))
    if row is not None and is_visible(request.user, row.topic):
        return redirect(url(request, "archived", pk=row.pk))
    if request.GET.get("moment"):  # from a form: the archiver needs a second
        return show(request, "message_ended.html", _("Message %(id)s") % {"id": message_id})
    words = _(
        "Message %(id)s is not live, and the archive has no row of it. Perhaps it"
        " was never enqueued, its row was pruned, or its topic is not archived. "
        "If it ended a second ago, reload the page."
    )
    words = f"{problem} {words % {'id': message_id}}".strip()
    return show(request, "not_there.html", _("No such message"), status=404, words=words)


def _now() -> datetime:
    """By Redis' clock, as far as it is known here."""
    return from_ms(get_store().now_us() / 1000)


def _reason(request: HttpRequest) -> str:
    """Raises InvalidMessage when there is none."""
    reason = request.POST.get("reason", "")[:500]
    operations.check_reason(reason)
    return reason
