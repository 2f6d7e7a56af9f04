"""What is called in transactions does the same as if it were called at once, as far as it is
committed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import pytest
from django.db import transaction
from django.utils import timezone

from django_delayq.core.exceptions import DuplicateMessage
from django_delayq.models import OutboxMessage
from django_delayq.outbox import postponed
from django_delayq.store.keys import meta_key
from tests.app.tasks import record, seen
from tests.faults import unreachable
from tests.hands import DAY, DEFAULT, Hands, messages_in, outbox, rows
from tests.servers import wait_until

pytestmark = pytest.mark.databases

#: How many `make test-long` tells of each kind, and how many `make test`.
STORIES, FEW = 15, 5
STEPS = ("enqueue", "keep", "replace", "cancel", "move")
NEAR, FAR = (300, 3_000), (2 * DAY, 3 * DAY)
#: By how many seconds a due time may differ: some delays count from the call, some from the commit.
SLACK = 5.0


class Undo(Exception):
    """Rolls back a savepoint or a transaction."""


class Wanted(NamedTuple):
    """What should be live: its argument and when it is due, or nothing."""

    version: int = 0
    due: float = 0.0


class Story:
    """One key: a few transactions at random, and what should come of them."""

    def __init__(self, seed: int, task: Any) -> None:
        self.dice = random.Random(seed)
        self.key = f"story:{seed}"
        self.task = task.using(key=self.key)
        self.wanted = Wanted()
        self.version = 0
        self.away = False
        """Whether Redis is: then nobody knows at the call what is live."""
        self.said: list[str] = []

    def __str__(self) -> str:
        return " | ".join(self.said)

    def transaction(self) -> None:
        """Up to four steps, or more in savepoints of savepoints; any of them, or all, may be rolled
        back."""
        self.said.append("begin, Redis is away" if self.away else "begin")
        with self.undone(), transaction.atomic():
            self.steps(4)
            self.perhaps_undo()
        self.said.append("end")

    def steps(self, most: int) -> None:
        """Each in a savepoint."""
        for _ in range(self.dice.randint(1, most)):
            with self.undone(), transaction.atomic():
                if most > 2 and self.dice.random() < 0.25:
                    self.said.append("savepoint")
                    self.steps(most - 1)
                else:
                    self.step()
                self.perhaps_undo()

    @contextmanager
    def undone(self) -> Iterator[None]:
        before = self.wanted
        try:
            yield
        except Undo:
            self.said.append("rolled back")
            self.wanted = before

    def perhaps_undo(self) -> None:
        if self.dice.random() < 0.2:
            raise Undo

    def step(self) -> None:
        steps = [
            step for step in STEPS if not (step == "enqueue" and self.away and self.wanted.version)
        ]
        step, delay = (
            self.dice.choice(steps),
            round(self.dice.uniform(*self.dice.choice((NEAR, FAR)))),
        )
        self.version += 1
        self.said.append(f"{step} {self.version} +{delay}")
        due = timezone.now().timestamp() + delay
        is_live = bool(self.wanted.version)
        if step == "cancel":
            assert self.task.cancel(key=self.key, missing_ok=True) == is_live or self.away, str(
                self
            )
            self.wanted = Wanted()
        elif step == "move":
            moved = self.task.reschedule(key=self.key, delay=delay, missing_ok=True)
            assert (moved is not None) == is_live or self.away, str(self)
            self.wanted = self.wanted._replace(due=due) if is_live else self.wanted
        elif step == "enqueue" and is_live:
            with pytest.raises(DuplicateMessage):
                self.task.using(delay=delay).enqueue(self.version)
        else:
            mode = "raise" if step == "enqueue" else step
            self.task.using(on_duplicate=mode, delay=delay).enqueue(self.version)
            if step != "keep" or not is_live:
                self.wanted = Wanted(self.version, due)

    def check(self) -> None:
        """Live is what is wanted, when it is wanted."""
        message = self.task.get(key=self.key)
        live = message and message.args[0]
        assert (live or 0) == self.wanted.version, (
            f"{live} is live, {self.wanted} is wanted: {self}"
        )
        if message is not None:
            late = message.due_at.timestamp() - self.wanted.due
            assert abs(late) < SLACK, f"{live} is {late:.0f} s late: {self}"


def apply_all(hands: Hands) -> None:
    """The relay tells Redis all that it has yet to hear."""
    OutboxMessage.objects.exclude(status="sent").exclude(
        status="waiting", may_be_in_redis=False
    ).update(relay_at_ms=0)
    hands.relay()


@pytest.mark.parametrize(
    "seed",
    [*range(FEW), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(FEW, STORIES))],
)
@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
@pytest.mark.parametrize("outages", [False, True], ids=["", "outages"])
def test_transactions_do_what_their_calls_say(
    hands: Hands, durable: bool, outages: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for known in (
        "CLOCK_ERROR_US",
        "CLOCK_UNKNOWN_US",
    ):  # here one transaction follows the other within a ms or two
        monkeypatch.setattr(postponed, known, 500)
    hands.store.partitions.counts("default")
    story = Story(seed, record.using(durable=durable))
    for _ in range(3):
        story.away = outages and story.dice.random() < 0.5
        if story.away or story.dice.random() < 0.5:
            hands.archive()
        with unreachable() if story.away else nullcontext():
            story.transaction()
        wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
        apply_all(hands)
        story.check()
    if story.wanted.version:
        assert story.task.reschedule(key=story.key, delay=0, missing_ok=True), str(story)
    apply_all(hands)
    hands.work()
    hands.archive()
    assert seen == ([story.wanted.version] if story.wanted.version else []), str(story)
    assert [row.state for row in rows()].count("acked") == bool(story.wanted.version), str(story)
    assert (outbox(), messages_in(hands.store)) == ([], set()), str(story)
    left = [
        field
        for field in hands.store.client.redis.hkeys(meta_key(hands.store.client.prefix, DEFAULT))
        if b"done:" in field
    ]
    assert left == [], str(story)
