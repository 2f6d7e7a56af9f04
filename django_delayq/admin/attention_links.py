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
#: Kinds that are about topics.
_BY_TOPIC = frozenset({"dead", "dead_letters", "lag", "backlog", "paused", "outbox", "unserved"})


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
    """The address of the page that helps; empty for a command."""
    help: str
    """What its link says, or the command that helps."""


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


def _help(  # noqa: PLR0911 - a table in words
    request: HttpRequest, concern: Concern, topic: str
) -> tuple[str, str]:
    """The address of the page that helps, and its name."""
    if concern.kind in _BY_TOPIC and not topic:
        return _help_of_topics(request, concern)
    if concern.kind in ("dead", "dead_letters"):
        return _with_query(request, "dead_letters", topic=topic), _("Dead letters")
    if concern.kind == "saturated":
        # Not of this topic alone: another one may have taken all threads.
        return url(request, "running"), _("Running messages")
    if concern.kind == "worker_gone":
        return _with_query(request, "running", worker=concern.worker), _("What it held")
    if concern.kind == "unarchivable":
        return url(request, "unarchivable"), _("Unarchivable entries")
    if concern.kind == "audit":
        return "", "manage.py delayq doctor"  # no page has what it finds
    return url(request, "workers"), _("Workers")


def _help_of_topics(request: HttpRequest, concern: Concern) -> tuple[str, str]:
    """The page of the only topic, or one about all."""
    only = concern.topics[0] if len(concern.topics) == 1 else ""
    if concern.kind in ("dead", "dead_letters"):
        return _with_query(request, "dead_letters", topic=only), _("Dead letters")
    if concern.kind == "unserved" and (registry.is_declared(only) or not only):
        return url(request, "workers"), _("Workers")
    if not only:
        return _with_query(request, "changelist", sort="lag"), _("Overview")
    where = url(request, "topic", topic=only)
    return where + ("?in=database" if concern.kind == "outbox" else ""), _("The topic")


def _with_query(request: HttpRequest, name: str, **query: str) -> str:
    given = urlencode({key: value for key, value in query.items() if value})
    return url(request, name) + (f"?{given}" if given else "")
