"""The histories of machine.py where every message is under one limit, of one run at a time."""

from __future__ import annotations

from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, multiple, rule, run_state_machine_as_test

from django_delayq.core.limits import LimitRule, TopicLimits
from django_delayq.store import keys
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store import factories
from tests.store.factories import CODE, LIMIT, PARTITION
from tests.store.machine import StoreMachine, leases

LIMITS = TopicLimits(tasks={CODE: LimitRule(concurrency=1)})


class LimitedMachine(StoreMachine):
    """Which of several messages goes first is free; that one goes when nothing runs is not."""

    limit = LIMIT

    @rule(target=leases, limit=st.integers(1, 3))
    def claim(self, limit: int) -> Any:
        """Every timer has come: nothing is waited for but the end of a run."""
        _, timers = keys.rate_keys(self.store.client.prefix, PARTITION)
        for member in self.store.client.redis.zrange(timers, 0, -1):
            self.store.client.redis.zadd(timers, {member: 1})
        live = self.model.live
        runs = [i for i, known in live.items() if known.token is not None]
        claimed = self.store.claim_limited(PARTITION, limit, None, LIMITS)
        now = claimed.now_us // 1000
        due = {i for i, known in live.items() if known.token is None and known.due <= now}
        expired = {i for i in due if live[i].expires}
        assert set(claimed.over) <= expired
        could_run = due - expired
        assert len(claimed.leases) <= (not runs)
        if not runs and could_run and (limit == 3 or not expired):
            assert len(claimed.leases) == 1
        for message_id in claimed.over:
            self.model.end(message_id, "expired")
        for lease in claimed.leases:
            assert lease.id in could_run
            self.model.live[lease.id].claimed(lease.token)
        return multiple(*claimed.leases)

    @rule(limit=st.integers(0, 1))
    def purge(self, limit: int) -> None:
        """Of a lane, what a limit holds back goes last."""
        lanes = {known.lane for known in self.model.live.values() if known.token is None}
        gone = self.store.purge(PARTITION, limit)
        assert len(gone) == min(limit, len(lanes))
        for message_id in gone:
            assert self.model.live[message_id].token is None
            assert self.model.live[message_id].lane == min(lanes)
            self.model.end(message_id, "cancelled")

    @invariant()
    def what_is_leased_has_the_place(self) -> None:
        content = self._dump()
        places = {member[9:] for member in content["limits"] if member[:1] == b"r"}
        assert places == content["leased"].keys()
        assert len(places) <= 1
        waiting = {member[15:] for member in content["limits"] if member[:1] == b"w"}
        assert factories.held_back_in(content) <= waiting


def test_every_history_under_a_limit_is_one_that_the_model_allows(
    store: RedisStore, server: Server, histories: int
) -> None:
    run_state_machine_as_test(
        lambda: LimitedMachine(store, server),
        settings=hypothesis_settings(
            max_examples=histories, stateful_step_count=40, deadline=None, derandomize=True
        ),
    )
