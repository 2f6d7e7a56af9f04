"""One topic: its figures, pause and resume, and its waiting messages."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from ...client import topics
from ...core.conf import get_settings
from ...core.exceptions import InvalidMessage, UnknownTopic
from ...core.message import Page
from ...operators import operations, recent_actions
from ...outbox.listing import CAP, count_outbox, list_outbox
from ...stats import overview
from ...tasks import registry
from ...tasks.redaction import call_in_one_line
from ..attention_links import shown_attention
from ..forms.message_forms import PauseForm
from ..site import back, may, register_action, register_page, show, url

#: Messages on a page.
LIMIT = 50
#: Leased messages that are shown.
MOST_RUNNING = 50


@register_page("topics/<str:topic>/", "topic")
def topic_view(request: HttpRequest, topic: str, form: PauseForm | None = None) -> HttpResponse:
    """The page of a topic. `form`: one that was sent and refused."""
    try:
        stats = topics.topic_stats(topic)
    except UnknownTopic as error:
        return show(request, "not_there.html", _("No such topic"), status=404, words=str(error))
    in_database = request.GET.get("in") == "database"
    listed = list_outbox if in_database else topics.list_messages
    after, problem = request.GET.get("after", ""), ""
    try:
        listing = listed(topic, cursor=after or None, limit=LIMIT)
    except InvalidMessage:
        listing = Page(messages=[], cursor=None)
        problem = _("%(cursor)s is not a position in this list. Go back to its start.") % {
            "cursor": f"{after!r:.80}"
        }
    pause = stats.paused
    if form is None and pause:
        # The form shows the present pause: to write another reason does not move its end.
        end = {"hold": "at", "at": pause.until} if pause.until else {}
        form = PauseForm(initial={"reason": pause.reason, **end})
    may_see = may(request, "view_payload")
    return show(
        request,
        "topic.html",
        _("Topic %(topic)s") % {"topic": topic},
        stats=stats,
        limits=get_settings().topics.get(topic),
        declared=registry.is_declared(topic),
        now=timezone.now(),
        pause=pause,
        attention=shown_attention(request, topic),
        figures=next((row for row in overview.overview().topics if row.topic == topic), None),
        outbox=count_outbox(topic),
        outbox_cap=CAP,
        in_database=in_database,
        rows=[
            (message, call_in_one_line(message) if may_see else "") for message in listing.messages
        ],
        after=after,
        further=listing.cursor,
        problem=problem,
        pause_form=form or PauseForm(),
        running=topics.list_running(topic, limit=MOST_RUNNING) if stats.leased else [],
        actions=recent_actions.of_topic(topic),
        choose=f"{url(request, 'waiting')}?{urlencode({'topic': topic})}",
        purge=f"{url(request, 'bulk_new')}?kind=purge&topic={topic}",
    )


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
