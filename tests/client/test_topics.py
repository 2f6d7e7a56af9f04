"""Looking at a topic, holding it, emptying it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq import (
    InvalidMessage,
    Message,
    Priority,
    State,
    UnknownTopic,
    list_messages,
    pause_topic,
    purge_topic,
    resume_topic,
    topic_stats,
)
from django_delayq.core.conf import parse_settings
from django_delayq.core.message import Attempts, Found
from django_delayq.store import get_store, keys
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from django_delayq.tasks.naming import shown
from tests.app.tasks import close_order, crowd, noop, record

DEFAULT = Partition("default", 0)
LONG_AGO = datetime(2001, 9, 9, tzinfo=timezone.utc)
due = record.using(due_at=LONG_AGO)
later = record.using(delay=3600)


@pytest.fixture
def split(settings: Any, delayq: RedisStore) -> RedisStore:
    """The topic "crowd" has four partitions."""
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 4}}}
    return get_store()


def pages(topic: str, limit: int, between: Callable[[], object] = lambda: None) -> list[Message]:
    """The whole listing, page by page."""
    found: list[Message] = []
    page = list_messages(topic, limit=limit)
    found += page.messages
    while page.cursor is not None:
        between()
        page = list_messages(topic, cursor=page.cursor, limit=limit)
        found += page.messages
    return found


# Figures


def test_topic_without_messages(delayq: RedisStore) -> None:
    stats = topic_stats("default")
    assert (stats.delayed, stats.backlog, stats.leased, stats.finished) == (0, 0, 0, 0)
    assert (stats.lag, stats.next_due_at, stats.paused) == (0.0, None, None)
    assert set(stats.counters.values()) == {0}


def test_counts_by_state(delayq: RedisStore) -> None:
    due.enqueue_many([(n,) for n in range(5)])
    later.enqueue_many([(n,) for n in range(3)])
    leases = delayq.claim(DEFAULT, 3).leases
    delayq.ack(DEFAULT, [(leases[0], b"{}")])
    stats = topic_stats("default")
    assert (stats.delayed, stats.backlog, stats.leased, stats.finished) == (3, 2, 2, 1)
    assert (stats.counters["enqueued"], stats.counters["acked"]) == (8, 1)


def test_lag_is_the_age_of_the_oldest_due_message(delayq: RedisStore) -> None:
    later.enqueue(1)
    assert topic_stats("default").lag == 0
    due.enqueue(2)
    stats = topic_stats("default")
    assert stats.next_due_at == LONG_AGO
    assert stats.lag == pytest.approx(
        (datetime.now(tz=timezone.utc) - LONG_AGO).total_seconds(), abs=60
    )


def test_next_due_is_the_earliest_of_all_partitions_and_lanes(split: RedisStore) -> None:
    handles = crowd.enqueue_many(
        crowd.using(delay=60 + n, priority=Priority(n % 3)).prepare(n) for n in reversed(range(40))
    )
    assert topic_stats("crowd").next_due_at == handles[-1].due_at
    assert topic_stats("crowd").delayed == 40


@pytest.mark.django_db
def test_every_call_refuses_an_unknown_topic(delayq: RedisStore) -> None:
    for call in (topic_stats, pause_topic, resume_topic, purge_topic, list_messages):
        with pytest.raises(UnknownTopic, match=r"'nowhere' is not declared\. Known topics:"):
            call("nowhere")  # type: ignore[operator]


# Holding


def test_paused_topic_hands_out_nothing_until_it_is_resumed(split: RedisStore) -> None:
    crowd.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(40)])
    pause_topic("crowd")
    partitions = split.partitions.all("crowd")
    assert [split.claim(p, 10).leases for p in partitions] == [[], [], [], []]
    assert all(split.claim(p, 10).paused for p in partitions)
    resume_topic("crowd")
    assert sum(len(split.claim(p, 100).leases) for p in partitions) == 40


def test_pause_says_who_when_and_why(delayq: RedisStore) -> None:
    pause_topic("default", by="ops", reason="SMTP is down")
    paused = topic_stats("default").paused
    assert paused is not None
    assert (paused.by, paused.reason) == ("ops", "SMTP is down")
    assert paused.since > datetime.now(tz=timezone.utc) - timedelta(hours=1)
    resume_topic("default")
    assert topic_stats("default").paused is None


def test_pausing_holds_one_topic_only(delayq: RedisStore) -> None:
    pause_topic("orders")
    due.enqueue(1)
    assert len(delayq.claim(DEFAULT, 1).leases) == 1
    assert topic_stats("default").paused is None


def test_paused_topic_takes_messages(delayq: RedisStore) -> None:
    pause_topic("default")
    assert due.enqueue(1).outcome == "stored"
    assert topic_stats("default").backlog == 1


def test_what_runs_goes_on_while_the_topic_is_paused(delayq: RedisStore) -> None:
    due.enqueue(1)
    lease = delayq.claim(DEFAULT, 1).leases[0]
    pause_topic("default")
    assert delayq.extend(DEFAULT, [lease]) == []
    assert delayq.ack(DEFAULT, [(lease, b"{}")]) == []


def test_partition_that_comes_while_the_topic_is_paused_is_paused_too(
    settings: Any, delayq: RedisStore
) -> None:
    """A deploy with more partitions must not let a held topic go on."""
    pause_topic("crowd", by="ops")
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 4}}}
    crowd.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(40)])
    store = get_store()
    assert [store.claim(p, 10).leases for p in store.partitions.all("crowd")] == [[], [], [], []]


# Emptying


@pytest.mark.django_db(transaction=True)
def test_purge_cancels_what_waits(split: RedisStore) -> None:
    crowd.using(due_at=LONG_AGO).enqueue_many(
        crowd.using(delay=n, priority=Priority(n % 3)).prepare(n) for n in range(1200)
    )
    assert purge_topic("crowd", reason="a mistake") == 1200
    stats = topic_stats("crowd")
    assert (stats.delayed, stats.backlog, stats.counters["cancelled"], stats.finished) == (
        0,
        0,
        1200,
        1200,
    )


@pytest.mark.django_db(transaction=True)
def test_purge_leaves_what_runs_and_other_topics(delayq: RedisStore) -> None:
    due.enqueue_many([(1,), (2,)])
    close_order.using(delay=60).enqueue(1)
    lease = delayq.claim(DEFAULT, 1).leases[0]
    assert purge_topic("default") == 1
    assert delayq.ack(DEFAULT, [(lease, b"{}")]) == []
    assert topic_stats("orders").delayed == 1


@pytest.mark.django_db(transaction=True)
def test_purge_takes_what_waits_now_and_not_what_comes(
    delayq: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy topic must not keep us for ever."""
    real = delayq.purge

    def purge_while_somebody_enqueues(*args: Any) -> int:
        later.enqueue("new")
        assert topic_stats("default").counters["cancelled"] < 10
        return real(*args)

    monkeypatch.setattr(delayq, "purge", purge_while_somebody_enqueues)
    later.enqueue_many([(n,) for n in range(3)])
    assert purge_topic("default") == 3
    assert topic_stats("default").delayed == 1


@pytest.mark.django_db(transaction=True)
def test_purge_of_an_empty_topic(delayq: RedisStore) -> None:
    assert purge_topic("default") == 0


# Listing


def test_listing_is_in_due_order_over_lanes_and_partitions(split: RedisStore) -> None:
    at = [(n * 37) % 50 for n in range(50)]
    crowd.enqueue_many(crowd.using(delay=3600 + n, priority=Priority(n % 3)).prepare(n) for n in at)
    for limit in (1, 7, 49, 50, 51):
        assert [m.args[0] for m in pages("crowd", limit)] == list(range(50))


def test_messages_of_one_instant_are_all_listed_once(split: RedisStore) -> None:
    when = datetime(2035, 1, 1, tzinfo=timezone.utc)
    handles = crowd.enqueue_many(
        crowd.using(due_at=when, priority=Priority(n % 3)).prepare(n) for n in range(100)
    )
    listed = [message.id for message in pages("crowd", 9)]
    assert sorted(listed) == sorted(handle.id for handle in handles)
    assert listed == sorted(listed)


@pytest.mark.django_db(transaction=True)
def test_cursor_is_a_place_and_not_a_count(delayq: RedisStore) -> None:
    """What is removed or added before the place shifts nothing."""
    handles = later.enqueue_many(record.using(delay=3600 + n).prepare(n) for n in range(60))
    gone = iter(handles)

    def change() -> None:
        next(gone).cancel()
        record.using(delay=60).enqueue("new")

    assert [m.args[0] for m in pages("default", 10, change)] == list(range(60))


def test_listing_shows_state_priority_and_attempts(delayq: RedisStore) -> None:
    handle = due.using(priority="high").enqueue(1)
    lease = delayq.claim(DEFAULT, 1).leases[0]
    delayq.nack(DEFAULT, [(lease, 60_000, True, b"{}")])
    later.enqueue(2)
    due.enqueue(3)
    listed = list_messages("default").messages
    assert [(m.args, m.state, m.attempt, m.priority) for m in listed] == [
        ([3], State.READY, 0, Priority.NORMAL),
        ([1], State.DELAYED, 1, Priority.HIGH),
        ([2], State.DELAYED, 0, Priority.NORMAL),
    ]
    assert listed[1].id == handle.id


def test_listing_shows_the_runs_that_have_ended(delayq: RedisStore) -> None:
    handle = due.enqueue(1)
    for number in range(2):
        (lease,) = delayq.claim(DEFAULT, 1).leases
        delayq.nack(
            DEFAULT,
            [(lease, 0, True, json.dumps({"outcome": "retried", "error": f"E{number}"}).encode())],
        )
        delayq.reschedule_in(DEFAULT, handle.identity, "1000000000000")
    for message in (list_messages("default").messages[0], handle.get()):
        assert message is not None
        assert [(run["outcome"], run["error"]) for run in message.runs] == [
            ("retried", "E0"),
            ("retried", "E1"),
        ]
    later.enqueue(2)
    assert list_messages("default").messages[1].runs == ()


def test_listing_of_an_empty_topic(delayq: RedisStore) -> None:
    page = list_messages("default")
    assert (page.messages, page.cursor) == ([], None)


@pytest.mark.parametrize("cursor", ["", "x", "12", "x.0", "12.zz", ".", "12.0.0", f"0.{2**128}"])
def test_wrong_cursor_is_refused(delayq: RedisStore, cursor: str) -> None:
    noop.enqueue()
    with pytest.raises(InvalidMessage, match="is not a place in this list"):
        list_messages("default", cursor=cursor)


@pytest.mark.parametrize(
    "raw", [b"", b"x", b"\xff" * 23, b"\x10" * 40, b"\xff" * 14 + b"\x13" + b"\xff" * 30]
)
def test_message_that_cannot_be_decoded_is_shown(delayq: RedisStore, raw: bytes) -> None:
    good, bad = (later.enqueue(n) for n in range(2))
    delayq.client.command(
        "HSET", keys.partition_keys(delayq.client.prefix, DEFAULT)[4], bad.identity, raw
    )
    listed = {message.id: message.task for message in list_messages("default").messages}
    name = "undecodable" if len(raw) < 23 else f"code:{raw[19:23].hex()}"
    assert listed == {good.id: "tests.app.tasks.record", bad.id: name}


def headers() -> st.SearchStrategy[bytes]:
    """Of this version, with anything else in them."""
    flags = st.integers(0, 15).map(lambda low: bytes([0x10 | low]))
    return st.tuples(
        st.binary(min_size=14, max_size=14), flags, st.binary(min_size=8, max_size=8)
    ).map(b"".join)


@given(
    record=st.one_of(
        st.binary(max_size=60),
        st.tuples(headers(), st.sampled_from([b"[]", b"{}", b'{"key":5}', b"nonsense"])).map(
            b"".join
        ),
    ),
    entry=st.binary(min_size=38, max_size=38),
)
def test_no_record_whatever_hides_a_page(delayq: RedisStore, record: bytes, entry: bytes) -> None:
    found = Found(b"\0" * 16, State.DELAYED, 1_800_000_000_000, record, Attempts.decode(entry))
    assert shown(DEFAULT, found).id == "00" * 16


def test_task_that_nobody_here_knows_is_shown_by_its_name(
    delayq: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_delayq.tasks import registry

    later.enqueue(1)
    monkeypatch.setattr(registry, "by_code", {})
    assert list_messages("default").messages[0].task == "tests.app.tasks.record"


def test_settings_of_a_topic_are_checked() -> None:
    assert parse_settings({"TOPICS": {"a": {"partitions": 3}}}).topics["a"].partitions == 3
