"""Who may see and change which topics, by DELAYQ["TOPIC_PERMISSION"]. A project without this
setting pays one look at its settings.

The callable is asked `(user, topic, action) -> bool`. The action is the codename of a permission of
models.Dashboard. `view_dashboard` asks whether the topic exists for this user at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.contrib.auth import get_user_model
from django.utils.module_loading import import_string

from ..core.conf import get_settings
from ..core.exceptions import NotPermitted, StoreError, UnknownTopic
from ..outbox.existing import every_topic

VIEW = "view_dashboard"

#: Where a user has what remembered_topics() remembers.
_KNOWN = "_delayq_topics"
Topics = frozenset[str] | None
"""Names of topics; None: every topic."""


def permitted_topics(user: Any, *actions: str) -> Topics:
    """The topics that the user may see, and on which the user may do all of these. A topic that
    neither code nor Redis nor the outbox has is not among them."""
    permits = _callable_for(user)
    if permits is None:
        return None
    known: dict[tuple[str, ...], frozenset[str]] = getattr(user, _KNOWN, {})
    if actions in known:
        return known[actions]
    names = permitted_topics(user) if actions else _every_topic()
    known[actions] = frozenset(
        topic
        for topic in names or ()
        if all(permits(user, topic, name) for name in actions or (VIEW,))
    )
    return known[actions]


@contextmanager
def remembered_topics(user: Any) -> Iterator[None]:
    """Ask once for the topics of this user, for a request that changes nothing: a page asks for
    them six times."""
    setattr(user, _KNOWN, {})
    try:
        yield
    finally:
        with suppress(AttributeError):  # somebody shares the user with another request
            delattr(user, _KNOWN)


def _every_topic() -> list[str]:
    try:
        return every_topic()
    except StoreError:  # Redis is away: the pages of SQL go on
        return every_topic(redis=False)


def is_permitted(user: Any, topic: str, *actions: str) -> bool:
    """Whether the user may see this topic, and do all of these on it."""
    permits = _callable_for(user)
    return permits is None or all(permits(user, topic, name) for name in (VIEW, *actions))


def is_visible(user: Any, topic: str) -> bool:
    """Whether the topic exists for this user."""
    topics = permitted_topics(user)
    return topics is None or topic in topics


def check_permitted(user: Any, topic: str, *actions: str) -> None:
    """Raise UnknownTopic unless the topic exists for this user, and NotPermitted unless the user
    may do all of these on it."""
    if _callable_for(user) is None:
        return
    if not is_visible(user, topic):
        raise UnknownTopic(f"There is no topic {topic!r:.80}.")
    if not is_permitted(user, topic, *actions):
        raise NotPermitted(f"You may not do this on topic {topic}: {', '.join(actions)}.")


def sees_every_topic(user: Any) -> bool:
    """Whether no topic is hidden from this user, so that sums over all topics tell nothing new."""
    topics = permitted_topics(user)
    return topics is None or topics >= {*every_topic()}


def options_of_order(user: Any) -> dict[str, Any]:
    """What a bulk operation keeps of the user who orders it, so that the user can be asked for
    again when it runs."""
    return {} if _callable_for(user) is None else {"user": str(getattr(user, "pk", ""))}


def topics_of_order(options: dict[str, Any], *actions: str) -> Topics:
    """The topics on which the user who ordered a bulk operation may do this now. None: the order
    did not come from a user of the pages, or nothing is limited. Nobody who has left, or who is not
    active, may do anything."""
    if not get_settings().topic_permission or "user" not in options:
        return None
    model = get_user_model()
    try:
        user = model._default_manager.filter(pk=options["user"], is_active=True).first()
    except (ValueError, TypeError):
        user = None
    if user is None or not all(user.has_perm(f"django_delayq.{name}") for name in actions):
        return frozenset()
    return permitted_topics(user, *actions)


def _callable_for(user: Any) -> Callable[[Any, str, str], bool] | None:
    """The callable of the setting. None: the project has none, or the user is code or a shell,
    which can reach Redis and the database anyhow."""
    path = get_settings().topic_permission
    if not path or getattr(user, "is_outside_pages", False):
        return None
    permits: Callable[[Any, str, str], bool] = import_string(path)
    return permits
