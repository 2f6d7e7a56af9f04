"""The topics that exist: those that code declares, and those of which Redis or the outbox still has
messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.db import connections

from ..core.exceptions import UnknownTopic
from ..store import get_store
from ..tasks import registry

#: Topics of one statement: databases end a recursion after 1,000 steps.
STEPS = 500
_STEPS = """
WITH RECURSIVE steps (topic, number) AS (
    SELECT MIN(topic), 1 FROM {table} WHERE topic > %s
    UNION ALL
    SELECT (SELECT MIN(topic) FROM {table} WHERE topic > steps.topic), number + 1
    FROM steps WHERE topic IS NOT NULL AND number < %s
) SELECT topic FROM steps WHERE topic IS NOT NULL
"""


def check_existing(topic: str) -> str:
    """The topic itself. To look at a topic or to empty it, nobody has to declare it. Raises
    UnknownTopic.

    For an undeclared topic Redis is asked, then the database.
    """
    if registry.is_known_topic(topic) or topic in get_store().topics.names():
        return topic
    # Not above: models need the apps, and `import django_delayq` comes here before they are ready.
    from ..models import OutboxMessage

    if OutboxMessage.objects.filter(topic=topic).exists():
        return topic
    raise UnknownTopic(
        f"Topic {topic!r} is not declared. Known topics: {', '.join(every_topic())}. "
        "Neither Redis nor the outbox has messages of it."
    )


def every_topic(*, redis: bool = True, in_outbox: Iterable[str] | None = None) -> list[str]:
    """All topics, sorted. Without `redis`, Redis is not asked. `in_outbox`: topics_of_outbox(),
    when they were read before."""
    used = get_store().topics.names() if redis else ()
    kept = topics_of_outbox() if in_outbox is None else in_outbox
    return sorted({*registry.known_topics(), *used, *kept})


def topics_of_outbox() -> Iterator[str]:
    """The topics of the outbox. Each takes one step into an index: DISTINCT would read all rows."""
    from ..models import OutboxMessage

    connection = connections[OutboxMessage.objects.db]
    table = connection.ops.quote_name(OutboxMessage._meta.db_table)
    last = ""
    while True:
        with connection.cursor() as cursor:
            cursor.execute(_STEPS.format(table=table), [last, STEPS])
            found = [topic for (topic,) in cursor.fetchall()]
        yield from found
        if len(found) < STEPS:
            return
        last = found[-1]
