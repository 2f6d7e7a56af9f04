"""One topic: its figures, pause and resume, and its waiting messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.db import Error
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from ...client import topics
from ...core.conf import get_settings
from ...core.cursors import cursor_of
from ...core.exceptions import InvalidMessage, UnknownTopic
from ...core.message import Page
from ...models.one_statement import Count, read_together
from ...operators import operations, recent_actions
from ...outbox.listing import CAP, counted_rows, list_outbox
from ...stats import overview, overview_sql
from ...stats.due_tasks import MOST, tasks_due
from ...stats.held_messages import read_running
from ...stats.overview import Overview
from ...tasks import registry
from ...tasks.redaction import call_in_one_line
from .. import timed_charts
from ..attention_links import found_attention, shown_attention
from ..forms.message_forms import PauseForm
from ..site import back, may, register_action, register_page, show, url

#: Messages on a page.
LIMIT = 50
#: Running messages that are shown: the others are on their own page.
MOST_RUNNING = 5


@register_page("topics/<str:topic>/", "topic")
def topic_view(request: HttpRequest, topic: str, form: PauseForm | None = None) -> HttpResponse:
    """The page of a topic. `form`: one that was sent and refused."""
    try:
        stats = topics.topic_stats(topic)
    except UnknownTopic as error:
        return show(request, "not_there.html", _("No such topic"), status=404, words=str(error))
    pause = stats.paused
    if form is None and pause:
        # The form shows the present pause: to write another reason does not move its end.
        end = {"hold": "at", "at": pause.until} if pause.until else {}
        form = PauseForm(initial={"reason": pause.reason, **end})
    now = overview.overview_of([topic])
    running = read_running([topic], topic=topic, limit=MOST_RUNNING) if stats.leased else None
    return show(
        request,
        "topic.html",
        _("Topic %(topic)s") % {"topic": topic},
        refreshed=True,
        charts=True,
        stats=stats,
        limits=get_settings().topics.get(topic),
        declared=registry.is_declared(topic),
        now=timezone.now(),
        pause=pause,
        attention=shown_attention(request, found_attention(request), topic),
        figures=next((row for row in now.topics if row.topic == topic), None),
        has_database=now.has_database,
        outbox_cap=CAP,
        pause_form=form or PauseForm(),
        running=running,
        rows_running=(
            [(row, row.seconds(running.at), row.is_over(running.at)) for row in running.rows]
            if running
            else []
        ),
        may_see=may(request, "view_payload"),
        choose=f"{url(request, 'waiting')}?{urlencode({'topic': topic})}",
        purge=f"{url(request, 'bulk_new')}?kind=purge&topic={topic}",
        **_waiting(request, topic),
        **_pictures(request, topic, now),
        **_of_database(topic),
    )


def _waiting(request: HttpRequest, topic: str) -> dict[str, Any]:
    """The list of waiting messages, of Redis or of the outbox, from the place that is asked for."""
    in_database = request.GET.get("in") == "database"
    listed: Callable[..., Page] = list_outbox if in_database else topics.list_messages
    after, problem = request.GET.get("after", ""), ""
    asked, instant = request.GET.get("from", ""), None
    if asked:
        instant = _instant(asked)
        if instant is None:
            problem = _("%(time)s is no time.") % {"time": f"{asked!r:.80}"}
        else:
            after = cursor_of(max(0, round(instant.timestamp() * 1000)), 0)
    listing = Page(messages=[], cursor=None)
    try:
        listing = listed(topic, cursor=after or None, limit=LIMIT)
    except InvalidMessage:
        problem = _("%(cursor)s is not a position in this list. Go back to its start.") % {
            "cursor": f"{after!r:.80}"
        }
    except Error as error:
        problem = overview_sql.problem_of(error)
    may_see = may(request, "view_payload")
    return {
        "in_database": in_database,
        "rows": [
            (message, call_in_one_line(message) if may_see else "") for message in listing.messages
        ],
        "after": after,
        "from_time": f"{instant:%Y-%m-%dT%H:%M}" if instant else "",
        "further": listing.cursor,
        "problem": problem,
    }


def _instant(text: str) -> datetime | None:
    """A time in the page's zone; it may be given in another. None for what is no time there."""
    try:
        found = parse_datetime(text)
        if found is not None and timezone.is_naive(found):
            found = timezone.make_aware(found)
        return found and timezone.localtime(found)
    except (ValueError, OverflowError):
        return None


def _pictures(request: HttpRequest, topic: str, now: Overview) -> dict[str, Any]:
    here = f"{url(request, 'waiting')}?{urlencode({'topic': topic})}&"
    by_task, is_partial = request.GET.get("by") == "task", False
    minutes = timed_charts.minutes_chart(now, here)
    if by_task and now.minutes:
        counts, is_partial = tasks_due(topic, [bar.at for bar in now.minutes if bar.at])
        minutes = timed_charts.tasks_chart(counts, now, here)
    query = request.GET.copy()
    query.pop("by", None)
    if not by_task:
        query["by"] = "task"
    return {
        "minutes": minutes,
        "hours": timed_charts.hours_chart(now, here),
        "by_task": by_task,
        "by_task_query": f"?{query.urlencode()}#delayq-due",
        "is_partial": is_partial,
        "most_read": MOST,
        **timed_charts.past(request, now),
    }


def _of_database(topic: str) -> dict[str, Any]:
    """What the database has of it: nothing while that is away, and Redis alone is shown."""

    try:
        outbox, actions = read_together(Count(counted_rows(topic)), recent_actions.of_topic(topic))
    except Error as error:
        return {"outbox": None, "database_problem": overview_sql.problem_of(error)}
    return {
        "outbox": outbox,
        # For MariaDB and MySQL capital letters do not matter.
        "actions": [
            action
            for action in sorted(actions, key=lambda action: -action.pk)
            if action.topic == topic
        ],
    }


@register_action("topics/<str:topic>/pause/", "topic_pause", "pause_topic")
def topic_pause_view(request: HttpRequest, topic: str) -> HttpResponse:
    """Pause the topic, or change its pause."""
    form = PauseForm(request.POST)
    if not form.is_valid():
        return topic_view(request, topic, form)
    operations.pause(request.user, topic, reason=form.cleaned_data["reason"], until=form.until())
    messages.success(
        request,
        _("The topic %(topic)s is paused. Running messages go on; no other message starts.")
        % {"topic": topic},
    )
    return back(request, "topic", topic=topic)


@register_action("topics/<str:topic>/resume/", "topic_resume", "pause_topic")
def topic_resume_view(request: HttpRequest, topic: str) -> HttpResponse:
    """Resume the topic."""
    operations.resume(request.user, topic, reason=request.POST.get("reason", "")[:500])
    messages.success(request, _("The topic %(topic)s goes on.") % {"topic": topic})
    return back(request, "topic", topic=topic)
