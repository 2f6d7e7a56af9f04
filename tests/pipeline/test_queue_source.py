"""spark.read.format("delayq_queue"): what lies in Redis as a DataFrame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from django_delayq.core.exceptions import ConfigurationError
from django_delayq.pipeline import schemas
from django_delayq.pipeline.params import Params, Redis, Secret
from django_delayq.pipeline.sources.queue_source import SMALL, QueueReader, parted, read_queue
from django_delayq.store.keys import Partition, partition_keys
from django_delayq.store.store import RedisStore
from django_delayq.store.structures import STRUCTURES, Structure
from tests.app.tasks import close_order, crowd, record
from tests.hands import Hands

CANARY = "canary-5f1c"


def test_what_waits_has_a_row_with_its_due_time(spark: Any, parameters: Callable[..., Params]):
    handles = record.using(delay=3600).enqueue_many([(n,) for n in range(50)])
    close_order.using(delay=60, priority="high").enqueue(1)
    frame = read_queue(spark, parameters().redis)
    assert frame.schema == from_arrow_schema(schemas.QUEUE)
    rows = frame.collect()
    assert Counter((row.topic, row.place) for row in rows) == {
        ("default", "normal"): 50,
        ("orders", "high"): 1,
    }
    assert {row.message_id for row in rows} >= {handle.id for handle in handles}


def test_all_places_of_all_partitions_are_read(
    spark: Any, parameters: Callable[..., Params], split: Callable[[int], RedisStore]
):
    hands = Hands(split(4))
    crowd.using(delay=60).enqueue_many([(n,) for n in range(200)])
    split(2)
    crowd.using(delay=60).enqueue_many([(n,) for n in range(200, 300)])
    record.using(durable=True).enqueue(1)
    hands.work()
    frame = read_queue(spark, parameters().redis)
    rows = frame.collect()
    assert len({row.message_id for row in rows if row.topic == "crowd"}) == 300
    assert {row.partition for row in rows if row.topic == "crowd"} == {0, 1, 2, 3}
    assert sorted(row.place for row in rows if row.topic == "default") == ["done", "finished"]


def test_topics_may_be_chosen(spark: Any, parameters: Callable[..., Params]):
    record.using(delay=60).enqueue(1)
    close_order.using(delay=60).enqueue(1)
    crowd.using(delay=60).enqueue(1)
    redis = parameters().redis
    assert {row.topic for row in read_queue(spark, redis, ["orders"]).collect()} == {"orders"}
    assert {row.topic for row in read_queue(spark, redis, ["orders", "crowd"]).collect()} == {
        "orders",
        "crowd",
    }
    assert read_queue(spark, redis, ["nobody"]).collect() == []


def test_an_empty_queue_is_an_empty_frame(spark: Any, parameters: Callable[..., Params]):
    frame = read_queue(spark, parameters().redis)
    assert (frame.count(), frame.schema) == (0, from_arrow_schema(schemas.QUEUE))


@pytest.mark.long
def test_an_error_has_no_secret(spark: Any, tmp_path: Any):
    path = tmp_path / "url"
    path.write_text(f"redis://user:{CANARY}@127.0.0.1:1/0")
    with pytest.raises(Exception, match="Cannot reach Redis") as refused:
        read_queue(spark, Redis(Secret(f"file:{path}"))).count()
    assert CANARY not in str(refused.value)


def test_the_url_is_not_in_the_plan(
    spark: Any, parameters: Callable[..., Params], server: Any, capsys: Any
):
    frame = read_queue(spark, parameters().redis)
    frame.explain("extended")
    plan = capsys.readouterr().out
    assert "delayq_queue" in plan
    assert server.url not in plan


def test_topics_of_the_settings_are_read_though_redis_has_lost_its_list(
    spark: Any, parameters: Callable[..., Params], split: Callable[[int], RedisStore]
):
    store = split(3)
    key = partition_keys(store.client.prefix, Partition("crowd", 2))[1]
    store.client.redis.zadd(key, {bytes(16): 5})
    rows = read_queue(spark, parameters().redis).collect()
    assert [(row.topic, row.partition, row.place, row.record) for row in rows] == [
        ("crowd", 2, "normal", None)
    ]


@pytest.mark.parametrize(
    ("options", "said"), [({}, "`redis` is missing"), ({"redis": "[]"}, "`redis` cannot be read")]
)
def test_an_option_that_is_missing_or_damaged_is_named(options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        QueueReader(options)


# How it is divided


def structures(topics: int) -> list[Structure]:
    return [Structure(Partition(f"t{n}", 0), name) for n in range(topics) for name in STRUCTURES]


def test_large_structures_of_one_partition_are_read_side_by_side():
    sizes = dict.fromkeys(structures(1), 0)
    sizes[Structure(Partition("t0", 0), "normal")] = sizes[
        Structure(Partition("t0", 0), "none")
    ] = 10 * SMALL
    first, second, *rest = parted(sizes)
    assert [[one.name for one in part] for part in (first, second)] == [["normal"], ["none"]]
    assert len(rest) == 1


@pytest.mark.parametrize("size", [0, 1, SMALL // 100, SMALL, 3 * SMALL])
def test_every_structure_is_in_one_part(size: int):
    every = structures(40)
    parts = parted(dict.fromkeys(every, size))
    assert sorted(one for part in parts for one in part) == sorted(every)
    assert all(len(part) * size <= max(SMALL, size) for part in parts)
    assert len(parts) == max(1, -(-len(every) * size // max(SMALL, size)))


def test_no_structure_is_no_part():
    assert parted({}) == []
