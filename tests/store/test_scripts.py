"""What holds for every Lua file, and how scripts reach the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from django_delayq import store as package
from django_delayq.core.conf import parse_settings
from django_delayq.core.exceptions import StoreForbidden
from django_delayq.core.task_report import TaskProgress, TaskReport
from django_delayq.store import keys, scripts
from django_delayq.store.bulk_load import BulkLoader
from django_delayq.store.connection import open_client
from django_delayq.store.hints import HintStream
from django_delayq.store.keys import Partition
from django_delayq.store.queries import Queries
from django_delayq.store.repair import Repair
from django_delayq.store.reports import Reports
from django_delayq.store.scripts import Script
from django_delayq.store.store import RedisStore
from django_delayq.store.topic_catalog import Topics
from tests.servers import Server
from tests.store.factories import PARTITION, claim, dump, enqueue, new_id, nodes, on_all_nodes
from tests.store.life import whole_life

LUA = files(package).joinpath("lua")
PARTS = (RedisStore, Queries, Topics, BulkLoader, Repair, Reports)
HEADER = ("Guarantee", "KEYS", "ARGV", "Returns")
READING = {
    "durable_status",
    "ended",
    "find",
    "forecast",
    "holders",
    "leased_under",
    "list",
    "stats",
}

#: The least that a Redis user of django_delayq needs, for one prefix. docs/how-to/redis-user.md shows the
#: same.
ACL = (
    "+eval", "+evalsha", "+time", "+hget", "+hmget", "+hgetall", "+hkeys", "+hexists", "+hscan", "+hset", "+hdel",
    "+hincrby", "+exists", "+expire", "+set", "+publish", "+sadd", "+smembers", "+subscribe",
    "+zadd", "+zrem", "+zrange", "+zrangebyscore", "+zrangebylex", "+zlexcount", "+zscore", "+zmscore", "+zcount", "+zcard", "+zscan",
    "+xadd", "+xlen", "+xdel", "+xack", "+xrevrange", "+xrange", "+xreadgroup", "+xautoclaim", "+xgroup|create",
    "+xgroup|delconsumer", "+xinfo|consumers",
)  # fmt: skip
#: Connection commands of redis-py and its cluster client.
ACL_OF_CLIENT = (
    "+ping",
    "+client",
    "+select",
    "+info",
    "+command",
    "+cluster|slots",
    "+cluster|shards",
)

#: Scripts that share their method with another, and the transitions that the store also has by
#: topic.
METHODS = {"enqueue_one": "enqueue", "forecast": "snapshot"}
METHODS |= {name: f"{name}_in" for name in ("cancel", "reschedule", "edit")}

NAMES = sorted(path.name[:-4] for path in LUA.iterdir() if path.name.endswith(".lua"))
every_script = pytest.mark.parametrize("name", NAMES)


def lines(name: str) -> list[str]:
    return LUA.joinpath(f"{name}.lua").read_text(encoding="utf-8").splitlines()


def all_files() -> Iterator[tuple[str, str]]:
    for folder in (LUA, LUA.joinpath("shared")):
        for part in folder.iterdir():
            if part.name.endswith(".lua"):
                yield part.name, part.read_text(encoding="utf-8")


every_file = pytest.mark.parametrize(("name", "text"), list(all_files()))


# The texts


@every_script
def test_a_script_is_named_as_the_method_that_calls_it(name: str) -> None:
    method = METHODS.get(name, name)
    assert any(hasattr(part, method) for part in PARTS)


@every_script
def test_the_header_says_transition_guarantee_keys_argv_and_returns(name: str) -> None:
    header = "\n".join(line for line in lines(name) if line.startswith("--"))
    assert re.match(rf"-- {name}: \S", header)
    places = [header.find(f"\n-- {word}: ") for word in HEADER]
    assert all(place > 0 for place in places) and places == sorted(places)


@every_script
def test_a_script_says_whether_it_changes_anything(name: str) -> None:
    assert ("changes nothing" in lines(name)[0]) == (name in READING)


@every_file
def test_a_script_fits_on_a_screen(name: str, text: str) -> None:
    assert len(text.splitlines()) <= 66
    assert max(map(len, text.splitlines())) <= 125


@every_file
def test_no_script_decodes_a_body_hides_an_error_or_searches_keys(name: str, text: str) -> None:
    code = re.sub(r"--.*", "", text)
    for key in ("RESULTS[i]", "WINDOWS"):  # no message is there
        code = code.replace(f"'EXPIRE', {key}", "")
    assert not re.search(
        r"cjson|cmsgpack|pcall|loadstring|'(KEYS|SCAN|SELECT|EXPIRE|PEXPIRE|RANDOMKEY)'", code
    )


@every_file
def test_keys_are_bound_once_and_the_clock_is_read_once(name: str, text: str) -> None:
    first = name in ("partition.lua", "lone.lua")
    code = re.sub(r"--.*", "", text)
    own = name in ("ack.lua", "progress.lua")  # keys beside those of the partition
    assert len(re.findall(r"\bKEYS\b", code)) == first + own
    assert len(re.findall(r"'TIME'", code)) == first


@every_file
def test_every_command_names_a_key_of_the_partition(name: str, text: str) -> None:
    bound = {"LEASED", "MESSAGES", "ATTEMPTS", "FINISHED", "FOLLOWERS", "META", "FENCE"}
    bound |= {"LIMITS", "BUCKETS", "TIMERS", "WINDOWS"}
    bound |= {"PROGRESS", "RESULTS[i]", "LANE", "lane", "lane_of(record)", "replaced[i]"}
    for command, key in re.findall(r"redis\.call\('(\w+)', ([^,()]+(?:\([^)]*\))?)", text):
        assert key in bound or command == "PUBLISH"


@every_file
def test_every_range_has_a_limit(name: str, text: str) -> None:
    """A script whose time grows with the backlog stops everybody else for as long."""
    for line in text.splitlines():
        if "'ZRANGEBYSCORE'" in line:
            assert "'LIMIT', 0, limit)" in line
        assert not re.search(r"'(ZRANGE|XRANGE|HKEYS|HVALS|SMEMBERS|ZREVRANGE)', \w+, 0, -1", line)


def test_the_first_lines_bind_the_keys_in_the_order_of_keys_py() -> None:
    bound = re.search(r"local (.+) = unpack\(KEYS\)", scripts.shared_text("partition"))
    assert (
        bound
        and bound[1]
        == "HIGH, NORMAL, LOW, LEASED, MESSAGES, ATTEMPTS, FINISHED, FOLLOWERS, META, LIMITS, "
        "BUCKETS, TIMERS"
    )
    names = [key.rpartition("}:")[2] for key in keys.partition_keys("p", PARTITION)]
    assert names == [
        "delayed:high",
        "delayed:normal",
        "delayed:low",
        *bound[1].lower().split(", ")[3:-2],
    ]
    of_rates = keys.rate_keys("p", PARTITION)
    assert [key.rpartition("}:")[2] for key in of_rates] == ["buckets", "timers"]
    assert keys.fence_key("p", PARTITION, "night") == f"p:{{{PARTITION}}}:bulk:night"


@every_script
def test_a_script_gets_the_shared_parts_that_its_header_names_and_no_other(name: str) -> None:
    header = next(line for line in lines(name) if line.startswith("-- KEYS: "))
    keys_of = header.partition("(shared/")[2].partition(".lua)")[0]
    named = header.partition("Shared: ")[2].rstrip(".").split(", ")
    text = scripts.load(name).text.decode()
    shared = {
        part.name[:-4]: part.read_text(encoding="utf-8")
        for part in LUA.joinpath("shared").iterdir()
    }
    assert {part for part, own in shared.items() if own in text} == {keys_of, *filter(None, named)}


# NOSCRIPT


@contextmanager
def counting_evals(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    texts: list[str] = []
    real = store.client.redis.execute_command

    def execute(command: str, *args: Any, **options: Any) -> Any:
        if command == "EVAL":
            texts.append(args[0].decode().splitlines()[0])
        return real(command, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(store.client.redis, "execute_command", execute)
        yield texts


def test_every_script_survives_a_flush_of_the_script_cache(
    store: RedisStore, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counting_evals(store, monkeypatch) as texts:
        for call in whole_life(store):
            on_all_nodes(server, "SCRIPT", "FLUSH")
            call()
    assert len(texts) >= len(NAMES)


def test_a_round_trip_about_many_partitions_sends_each_text_once(
    store: RedisStore, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = [Partition(f"topic{n}", 0) for n in range(30)]
    before = store.queries.snapshot(partitions, [2**40], 1)
    on_all_nodes(server, "SCRIPT", "FLUSH")
    with counting_evals(store, monkeypatch) as texts:
        after = store.queries.snapshot(partitions, [2**40], 1)
    assert after.forecast == before.forecast
    assert after.stats.keys() == before.stats.keys()
    assert len(texts) == 2 * len(nodes(server))


def test_the_text_is_sent_once_and_then_only_its_name(
    store: RedisStore, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_all_nodes(server, "SCRIPT", "FLUSH")
    with counting_evals(store, monkeypatch) as texts:
        for _ in range(3):
            store.queries.stats(PARTITION)
    assert len(texts) == 1


def listen(store: RedisStore) -> None:
    """Subscribe, and read until the server has answered."""
    hints = HintStream(store)
    try:
        assert hints.connect()
        store.client.redis.publish(keys.wakeups_channel(store.client.prefix), "orders:0:5")
        while hints.read(0.2) is None:
            pass
    finally:
        hints.close()


def test_the_life_above_calls_every_script(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: set[str] = set()

    def spy(name: str) -> Script:
        called.add(name)
        return scripts.load(name)

    monkeypatch.setattr(store.client, "load", spy)
    for call in whole_life(store):
        call()
    assert called == set(NAMES)


# A user who is limited to the prefix


@contextmanager
def limited(server: Server, prefix: str, *rules: str) -> Iterator[RedisStore]:
    """A store whose Redis user may do only this."""
    on_all_nodes(server, "ACL", "SETUSER", prefix, "reset", "on", ">secret", *rules)
    parts = urlsplit(server.url)
    url = urlunsplit(parts._replace(netloc=f"{prefix}:secret@{parts.netloc}"))
    settings = parse_settings({"REDIS": url, "PREFIX": prefix})
    store = RedisStore(open_client(settings), settings)
    try:
        yield store
    finally:
        store.close()
        on_all_nodes(server, "ACL", "DELUSER", prefix)


def client_rules(server: Server) -> tuple[str, ...]:
    """Redis 6.2 has no rules for CLUSTER's subcommands of later versions, a single server needs
    none of them."""
    return ACL_OF_CLIENT if server.kind == "cluster" else ACL_OF_CLIENT[:3]


def prefix_rules(prefix: str) -> tuple[str, ...]:
    return "resetchannels", f"~{prefix}:*", f"&{prefix}:*"


def test_a_user_limited_to_the_prefix_can_do_everything(server: Server, prefix: str) -> None:
    with limited(server, prefix, *prefix_rules(prefix), *ACL, *client_rules(server)) as store:
        for call in whole_life(store):
            call()
        listen(store)


def test_who_waits_for_results_needs_two_rights_more(server: Server, prefix: str) -> None:
    rights = *prefix_rules(prefix), *ACL, *client_rules(server)
    with limited(server, prefix, *rights) as store:
        with pytest.raises(StoreForbidden):
            store.reports.result("orders", new_id())
        with pytest.raises(StoreForbidden):
            store.reports.progress("orders", new_id())
    with limited(server, prefix, *rights, "+xread", "+get") as store:
        lease = claim(store)
        lease.report = TaskReport()
        lease.report.result = b"1"
        store.progress(lease, b"[1]", 60_000)
        assert store.reports.progress("orders", lease.id) == TaskProgress(1)
        store.ack(PARTITION, [(lease, b"{}")])
        assert store.reports.result("orders", lease.id) is not None


@pytest.mark.parametrize("missing", ACL)
def test_each_of_its_rights_is_needed(server: Server, prefix: str, missing: str) -> None:
    if missing in ("+eval", "+evalsha"):
        on_all_nodes(server, "SCRIPT", "FLUSH")
    rights = [rule for rule in ACL if rule != missing]
    weak = limited(server, prefix, *prefix_rules(prefix), *rights, *client_rules(server))
    with weak as store, pytest.raises(StoreForbidden):
        for call in whole_life(store):
            call()
        listen(store)


def test_a_foreign_key_is_refused(server: Server, prefix: str) -> None:
    with limited(server, prefix, *prefix_rules(prefix), "+@all") as store:
        store.client.prefix = "foreign"
        with pytest.raises(StoreForbidden):
            enqueue(store)
        with pytest.raises(StoreForbidden):
            store.workers.beat("worker", "{}")


def test_a_foreign_channel_is_refused(server: Server, prefix: str) -> None:
    with limited(server, prefix, "resetchannels", f"~{prefix}:*", "&other:*", "+@all") as store:
        hints = HintStream(store)
        hints.connect()
        with pytest.raises(StoreForbidden):
            hints.read(5)


def test_a_refused_user_changes_nothing(store: RedisStore, server: Server, prefix: str) -> None:
    enqueue(store, when="+9000")
    before = dump(store)
    rights = [rule for rule in ACL if rule != "+hset"]
    with limited(server, prefix, *prefix_rules(prefix), *rights, *client_rules(server)) as weak:  # noqa: SIM117
        with pytest.raises(StoreForbidden):
            enqueue(weak)
    assert dump(store) == before
