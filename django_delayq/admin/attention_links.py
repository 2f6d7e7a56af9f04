"""What needs attention, with the page that helps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.translation import gettext as _

from ..operators.topic_permission import permitted_topics
from ..stats.attention import concerns
from ..stats.attention.concerns import Concern, Urgency
from ..tasks import registry
from .site import url

#: Topics that a line names, and lines about all topics. The others are a number.
MOST_TOPICS, MOST_LINES = 5, 20


@dataclass(frozen=True, kw_only=True)
class ShownConcern:
    """One line of the list."""

    concern: Concern
    is_critical: bool
    topics: list[str]
    """The first of them; empty on the page of a topic."""
    more: int
    """How many topics are not named."""
    target: str
    """The address of the page that helps."""
    help: str
    """What its link says."""


def found_attention(request: HttpRequest) -> Sequence[Concern]:
    """What the user may know of all topics."""
    return concerns.attention(permitted_topics(request.user))


def shown_attention(
    request: HttpRequest, found: Sequence[Concern], topic: str = ""
) -> list[ShownConcern]:
    """The lines of what was found: the first ones about all topics, or those about one."""
    chosen = concerns.concerns_of(topic, found) if topic else found[:MOST_LINES]
    return [_shown(request, concern, topic) for concern in chosen]


def _shown(request: HttpRequest, concern: Concern, topic: str) -> ShownConcern:
    # A worker or the archiver is about all its topics: to name them says nothing.
    named = concern.topics if concern.measured.topic and not topic else []
    target, words = _help(request, concern, topic)
    return ShownConcern(
        concern=concern,
        is_critical=concern.urgency is Urgency.CRITICAL,
        topics=list(named[:MOST_TOPICS]),
        more=max(0, len(named) - MOST_TOPICS),
        target=target,
        help=words,
    )


def _help(request: HttpRequest, concern: Concern, topic: str) -> tuple[str, str]:
    first = topic or concern.measured.topic
    if concern.kind in ("dead", "dead_letters"):
        address = f"{url(request, 'dead_letters')}?{urlencode({'topic': first})}"
        return address, _("Dead letters")
    if concern.kind == "saturated":
        # Not of this topic alone: another one may have taken all threads.
        return url(request, "running"), _("Running messages")
    if concern.kind == "worker_gone":
        address = f"{url(request, 'running')}?{urlencode({'worker': concern.worker})}"
        return address, _("What it held")
    if concern.kind == "unarchivable":
        return url(request, "unarchivable"), _("Unarchivable entries")
    is_undeclared = concern.kind == "unserved" and not registry.is_declared(first)
    if not topic and (is_undeclared or concern.kind in ("lag", "backlog", "paused")):
        return url(request, "topic", topic=first), _("The topic")
    return url(request, "workers"), _("Workers")
