"""Finding one message by its id or key, exactly, wherever it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import Client

from django_delayq.core.exceptions import UnknownTopic
from django_delayq.core.message import key_id
from django_delayq.models import ArchivedMessage
from django_delayq.models.one_statement import read_together
from django_delayq.operators import message_search, wider_search
from django_delayq.store.keys import partition_keys
from tests.admin.browser import address
from tests.admin.bulk_orders import text_of
from tests.app.tasks import close_order, crowd, noop
from tests.faults import unreachable
from tests.hands import DAY, DEFAULT, ORDERS, Hands, lose_redis
from tests.stats.overview import archived

HOSTILE = "<script>alert(1)</script>\u202e"
AsUser = Callable[..., Client]


@pytest.fixture
def find(as_user: AsUser, hands: Hands) -> Callable[..., Any]:
    """The answer to a search by who may only look."""
    client = as_user("view_dashboard")
    return lambda q, **query: client.get(address("find"), {"q": q, **query})


def newest() -> ArchivedMessage:
    return ArchivedMessage.objects.order_by("-pk")[0]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(
    "write",
    [str, lambda i: str(UUID(i)), str.upper, lambda i: f" {i} ", lambda i: f"{{{UUID(i)}}}"],
)
def test_an_id_leads_to_the_live_message_in_redis_and_in_the_database(
    find: Callable[..., Any], durable: bool, write: Callable[[str], str]
) -> None:
    handle = close_order.using(delay=DAY, durable=durable).enqueue(1)
    there = address("message", topic="orders", message_id=handle.id)
    assert find(write(handle.id)).url == there
    assert find(write(handle.id), topic="orders").url == there


def test_an_id_in_an_old_partition_is_found(
    find: Callable[..., Any], split: Callable[[int], Any]
) -> None:
    handle = crowd.using(delay=DAY).enqueue(1)
    split(7)
    assert find(handle.id).url == address("message", topic="crowd", message_id=handle.id)


def test_an_ended_message_is_found_as_its_newest_row(
    find: Callable[..., Any], hands: Hands
) -> None:
    for _ in range(2):
        handle = close_order.using(key="order:7").enqueue(7)
        hands.work(ORDERS)
        hands.archive()
    assert find(handle.id).url == address("archived", pk=newest().pk)
    assert find("order:7").url == address("archived", pk=newest().pk)
    again = close_order.using(key="order:7", delay=DAY).enqueue(7)
    assert find("order:7").url == address("message", topic="orders", message_id=again.id)


def test_a_key_is_found_in_its_topic(find: Callable[..., Any]) -> None:
    here = close_order.using(key="a", delay=DAY).enqueue(1)
    there = noop.using(key="a", delay=DAY).enqueue()
    assert find("a", topic="orders").url == address("message", topic="orders", message_id=here.id)
    html = find("a").content.decode()
    assert "Several topics have a message with this key" in html
    for handle in (here, there):
        assert address("message", topic=handle.topic, message_id=handle.id) in html


def test_several_hits_name_live_ones_first(find: Callable[..., Any], hands: Hands) -> None:
    noop.using(key="a").enqueue()
    hands.work(DEFAULT)
    hands.archive()
    close_order.using(key="a", delay=DAY).enqueue(1)
    html = find("a").content.decode()
    assert html.index("delayed") < html.index("acked")


def test_a_key_that_looks_like_an_id_is_found_too(find: Callable[..., Any]) -> None:
    key = str(uuid4())
    handle = close_order.using(key=key, delay=DAY).enqueue(1)
    there = address("message", topic="orders", message_id=handle.id)
    assert find(key).url == there
    assert find(f"key:{key}").url == there


def test_a_key_that_begins_with_the_word_is_found_behind_the_word(find: Callable[..., Any]) -> None:
    handle = close_order.using(key="key:1", delay=DAY).enqueue(1)
    assert find("key:key:1").url == address("message", topic="orders", message_id=handle.id)


@pytest.mark.parametrize(
    "query", ["nobody", "0" * 32, f"{1:0>8}-0000-7000-8000-{1:0>12}", HOSTILE, "%", "ord"]
)
def test_what_nobody_has_is_said_in_words(find: Callable[..., Any], query: str) -> None:
    close_order.using(key="order:1", delay=DAY).enqueue(1)
    html = find(query).content.decode()
    assert "neither a live one nor one in the archive" in html
    assert "<script>alert" not in html
    assert "\u202e" not in re.sub(
        'value="[^"]*"', "", html
    )  # what was typed stands in its input as it is


@pytest.mark.parametrize(
    ("query", "topic", "words"),
    [
        ("a", "nobody", "Known topics:"),
        ("x" * 257, "", "1 to 256 characters"),
        ("a\0b", "", "none of them NUL"),
        ("key:", "", "1 to 256"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    find: Callable[..., Any], query: str, topic: str, words: str
) -> None:
    response = find(query, topic=topic)
    assert response.status_code == 200 and words in response.content.decode()


def test_without_a_query_the_page_says_what_it_takes(find: Callable[..., Any]) -> None:
    assert "An id has 32 hexadecimal digits" in find("").content.decode()


def test_with_redis_away_the_archive_and_the_outbox_are_searched(
    find: Callable[..., Any], hands: Hands
) -> None:
    ended = close_order.using(key="order:7").enqueue(7)
    hands.work(ORDERS)
    hands.archive()
    kept = close_order.using(key="order:8", delay=DAY, durable=True).enqueue(8)
    here = close_order.using(key="order:9", delay=DAY).enqueue(9)
    row = address("archived", pk=newest().pk)
    there = address("message", topic="orders", message_id=kept.id)
    with unreachable():
        answers = {
            q: find(q)
            for q in (ended.id, "order:7", kept.id, "order:8", here.id, "order:9", "0" * 32)
        }
    for query, answer in answers.items():
        html = answer.content.decode()
        assert answer.status_code == 200 and "live messages in it were not searched" in html, query
        assert (row in html) == (query in (ended.id, "order:7"))
        assert (there in html) == (query in (kept.id, "order:8"))
    assert "Neither the archive nor the outbox has" in answers["order:9"].content.decode()


@pytest.fixture
def look(as_user: AsUser, hands: Hands) -> Callable[..., str]:
    """The text of a search by who may see arguments."""
    client = as_user("view_dashboard", "view_payload")
    return lambda q, **query: text_of(client.get(address("find"), {"q": q, **query}))


def test_an_argument_is_found_live_and_archived(look: Callable[..., str], hands: Hands) -> None:
    close_order.using(key="ended").enqueue(1042)
    hands.work(ORDERS)
    hands.archive()
    close_order.using(delay=DAY, key="waits").enqueue(1042)
    close_order.using(delay=DAY, key="kept", durable=True).enqueue(1042)
    close_order.using(delay=DAY, key="unlike").enqueue(7)
    for query in ("args.order_id:1042", "args.0:1042", "args.*:1042"):
        text = look(query)
        assert all(key in text for key in ("ended", "waits", "kept")), query
        assert "unlike" not in text
        assert "What ended in the last 7 days" in text
    assert "No message that was searched has this argument" in look("args.order_id:9")
    assert "waits" not in look("args.order_id:1042", topic="default")


def test_a_search_for_an_argument_says_what_it_did_not_read(
    look: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wider_search, "READS", 500)
    close_order.enqueue_many([close_order.using(delay=DAY).prepare(n) for n in range(600)])
    text = look("args.order_id:599")
    assert "No message that was searched" in text and "All waiting messages" in text


def test_who_may_not_see_arguments_cannot_search_for_them(find: Callable[..., Any]) -> None:
    close_order.using(delay=DAY, key="waits").enqueue(1042)
    text = text_of(find("args.order_id:1042"))
    assert "need the permission to see arguments" in text and "waits" not in text
    assert "Any argument" not in text_of(find("1042"))


def test_a_word_finds_keys_that_are_like_others(look: Callable[..., str], hands: Hands) -> None:
    close_order.using(key="order:1").enqueue(1)
    hands.work(ORDERS)
    hands.archive()
    for number in range(2, 80):
        close_order.using(key=f"order:{number}", delay=DAY).enqueue(number)
    close_order.using(key="order:4711", delay=2 * DAY).enqueue(4711)
    noop.using(key="mail/4712/second", delay=DAY).enqueue()
    text = look("4711")
    assert "Did you mean one of these?" in text and "order:4711" in text
    assert "mail/4712/second" in look("4712")
    assert "Did you mean" not in look("4713")
    text = look("ord")
    for offer in ("Any argument that is ord", "keys begin with ord", "last 24 hours that begin"):
        assert offer in text


def test_keys_of_a_topic_that_nobody_knows_any_more_are_suggested_too(
    look: Callable[..., str], hands: Hands
) -> None:
    archived(topic="gone", key="order:1")
    (row,) = archived(topic="gone", key="order/4711/second")
    row.message_id = UUID(bytes=key_id("gone", row.key))
    row.save()
    assert "order/4711/second" in look("4711")


def test_the_archive_finds_keys_by_their_beginning(as_user: AsUser, hands: Hands) -> None:
    for key in ("order:41", "order:42", "other:4"):
        close_order.using(key=key).enqueue(1)
    hands.work(ORDERS)
    hands.archive()
    client = as_user("view_dashboard")
    text = text_of(client.get(f"{address('archive')}?q=key:order:4*&period=24h"))
    assert "order:41" in text and "order:42" in text and "other:4" not in text
    assert "needs a period" in text_of(client.get(f"{address('archive')}?q=key:order:4*"))


@pytest.mark.parametrize("key", ["args.", "args.x", "argsx:1"])
def test_a_key_that_only_begins_like_an_argument_is_a_key(
    find: Callable[..., Any], key: str
) -> None:
    handle = close_order.using(key=key, delay=DAY).enqueue(1)
    assert find(key).url == address("message", topic="orders", message_id=handle.id)


def test_a_key_that_reads_like_an_argument_is_found_behind_the_word(
    find: Callable[..., Any],
) -> None:
    handle = close_order.using(key="args.x:1", delay=DAY).enqueue(1)
    assert find("key:args.x:1").url == address("message", topic="orders", message_id=handle.id)


def test_a_sent_row_whose_message_redis_has_lost_is_found(
    find: Callable[..., Any], hands: Hands
) -> None:
    handle = close_order.using(key="order:7", durable=True).enqueue(7)
    lose_redis(hands.store)
    assert find("order:7").url == address("message", topic="orders", message_id=handle.id)


def test_a_message_that_cannot_be_decoded_is_found(find: Callable[..., Any], hands: Hands) -> None:
    handle = close_order.using(delay=DAY).enqueue(7)
    key = partition_keys(hands.store.client.prefix, ORDERS)[4]
    hands.store.client.redis.hset(key, bytes.fromhex(handle.id), b"\x10" * 40)
    assert find(handle.id).url == address("message", topic="orders", message_id=handle.id)


def test_all_topics_are_searched_in_one_round_trip_and_few_queries(
    hands: Hands, django_assert_max_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in (close_order, noop, crowd):
        arguments = () if task is noop else (1,)
        task.using(key="a").enqueue(*arguments)
    for partition in (ORDERS, DEFAULT):
        hands.work(partition)
    hands.archive()
    message_search.by_key("a")
    asked: list[int] = []
    client = type(hands.store.client)
    read_all = client.read_all
    monkeypatch.setattr(
        client,
        "read_all",
        lambda self, reads: asked.append(len(reads)) or read_all(self, reads),
    )
    monkeypatch.setattr(client, "call", None)
    with django_assert_max_num_queries(1):
        hits = message_search.by_key("a")
    assert {(hit.topic, hit.state) for hit in hits} == {
        ("crowd", "ready"),
        ("default", "acked"),
        ("orders", "acked"),
    }
    assert len(asked) == 1


def test_a_message_that_ends_while_it_is_searched_is_found(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = noop.using(key="a").enqueue()
    store = type(hands.store)
    find_many = store.find_many

    def end_before(self: Any, places: Any) -> Any:
        hands.work()
        hands.archive()
        return find_many(self, places)

    monkeypatch.setattr(store, "find_many", end_before)
    (hit,) = message_search.by_key("a")
    assert (hit.message_id, hit.state) == (handle.id, "acked")


def test_nothing_is_searched(hands: Hands, django_assert_max_num_queries: Any) -> None:
    handle = close_order.using(delay=DAY).enqueue(1)
    with django_assert_max_num_queries(1):
        assert message_search.by_id(handle.id)
    with django_assert_max_num_queries(1):
        assert not message_search.by_key("nobody", "orders")


def test_a_wrong_topic_is_an_error_of_the_call(hands: Hands) -> None:
    with pytest.raises(UnknownTopic):
        message_search.by_key("a", "nobody")


def test_hidden_topics_are_neither_searched_nor_guessed(hands: Hands) -> None:
    close_order.using(key="order:1", delay=DAY).enqueue(1)
    close_order.using(key="order:4711", delay=DAY).enqueue(4711)
    noop.using(key="mail:4711", delay=DAY).enqueue()
    seen = frozenset({"default"})
    recent = read_together(*wider_search.recent_rows())
    similar = wider_search.similar_keys("4711", recent, topics=seen)
    assert {hit.topic for hit in similar} == {"default"}
    assert wider_search.by_argument("order_id", "4711", topics=seen).hits == []
    assert len(wider_search.by_argument("order_id", "4711").hits) == 1
