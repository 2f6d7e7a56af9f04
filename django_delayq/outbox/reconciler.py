"""Sends durable messages again that Redis has lost: by FLUSHALL, a failover, a power cut, an
emptied disk."""

from __future__ import annotations

import logging
from typing import Any

from ..core.database import reached
from ..core.service import Service
from ..models import OutboxMessage, OutboxStatus
from ..store.queries import Life
from ..store.store import RedisStore
from . import relay

logger = logging.getLogger("delayq.worker")

#: Rows that one round looks at. Of each, Redis is asked for eight bytes: a thousand take 5 ms.
PAGE = 1_000
#: Seconds between two pages, and between two times through all rows.
PACE = 0.5
REST = 2.0


class Reconciler(Service):
    """Walks through all sent rows in the order of their ids, again and again, and asks Redis for
    each of them.

    A message is sent again when it is neither live nor finished in Redis. Redis knows a finished
    message until the archiver has closed its row, so nothing runs twice because of this walk.
    """

    name = "reconciler"
    interval = REST

    def __init__(self, store: RedisStore) -> None:
        super().__init__()
        self._store = store
        self._after = 0
        self.restored = 0

    @property
    def figures(self) -> dict[str, Any]:
        """Messages found lost and sent again so far."""
        return {"restored": self.restored}

    def run_once(self) -> float:
        """Look at one page. Raises StoreUnavailable and DatabaseUnavailable: it is tried again."""
        if self._store.breaker.open:
            return self.interval
        with reached():
            now_ms = self._store.now_us() // 1000
            sent = OutboxMessage.objects.filter(
                status=OutboxStatus.SENT, pk__gt=self._after, relay_at_ms__lte=now_ms
            ).only("message_id", "enqueued_at_us", "topic", "relay_at_ms")
            rows = list(sent.order_by("pk")[:PAGE])
            lives = [(row.topic, Life(row.message_id.bytes, row.enqueued_at_us)) for row in rows]
            lost = self._store.missing(lives)
            missing = [row for row, (_, life) in zip(rows, lives, strict=True) if life in lost]
            # The archiver may have closed some of them since they were read.
            restored = len(relay.send_again(self._store, missing))
        if restored:
            self.restored += restored
            logger.warning(
                "%d durable messages were not in Redis any more and are sent again", restored
            )
        self._after = rows[-1].pk if len(rows) == PAGE else 0
        if len(rows) < PAGE:
            return self.interval
        return 0.0 if missing else PACE  # where some are lost, there are more
