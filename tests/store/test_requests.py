"""What the processes of the HTTP API share: counts of calls, and answers."""

from __future__ import annotations

from django_delayq.store.requests import Answered, KnownCall
from django_delayq.store.store import RedisStore

OF = b"of this call"
ANSWER = Answered(OF, 201, b'{"id": 1}')


def begin(store: RedisStore, fingerprint: bytes = OF) -> KnownCall:
    return store.requests.begin("call", fingerprint, 60_000, 3600)


def test_calls_are_counted_by_token_and_window(store: RedisStore) -> None:
    counts = [store.requests.count(token, window, 60) for token, window in ("a1", "a1", "b1", "a2")]
    assert counts == [1, 2, 1, 1]
    key = f"{store.client.prefix}:calls:a:1"
    assert 0 < store.client.redis.ttl(key) <= 120


def test_of_two_callers_one_goes_on(store: RedisStore) -> None:
    assert begin(store) == (OF, None, True)
    assert begin(store) == (OF, None, False)


def test_an_answer_is_given_again(store: RedisStore) -> None:
    begin(store)
    store.requests.answer("call", ANSWER, 3600)
    store.requests.give_up("call")
    assert begin(store, b"of another") == (OF, ANSWER, True)
    for name in ("answer", "first"):
        ends = store.client.redis.ttl(f"{store.client.prefix}:{{call:call}}:{name}")
        assert 3500 < ends <= 3600


def test_a_call_that_was_given_up_may_be_made_again(store: RedisStore) -> None:
    begin(store)
    store.requests.give_up("call")
    assert begin(store, b"of another") == (OF, None, True)


def test_the_name_of_a_call_that_was_refused_is_free_for_another(store: RedisStore) -> None:
    begin(store)
    store.requests.give_up("call", refused=True)
    assert begin(store, b"of another") == (b"of another", None, True)
