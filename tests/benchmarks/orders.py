"""Orders that are due at one instant and are closed by an UPDATE: one message a call, 500 a call, 500
a call exactly once, bare loops of the same UPDATEs, and other queues: `--peers`.

The ceiling of one message a call is a loop of UPDATEs of one row, without any queue, in two
processes of two threads: what is left for a queue of this machine. That of a batch is a loop of
UPDATEs of 500 rows in one process.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from tests.benchmarks import common, on_database
from tests.benchmarks.common import median
from tests.benchmarks.order_peers.catalogue import PEERS
from tests.benchmarks.order_peers.closed import close_by
from tests.benchmarks.peers.catalogue import Peer
from tests.benchmarks.peers.install import NotInstalledError, install, version
from tests.benchmarks.peers.session import PeerFailedError

COUNT = 20_000
RUNS = 5
#: Orders of one statement of the bare loop, as of one batch.
ROWS = 500
#: Orders that were closed long ago: a shop's table is not empty, and then its orders are found by
#: the index. Of a small table PostgreSQL reads every row for each 500.
OLDER = 100_000
#: A run that closes fewer orders a second has failed, after half a minute for a busy machine.
SLOWEST = 200
#: Calls before, so that every thread has a connection.
WARM_CALLS = 32
#: Other queues get so many: their rate does not depend on the number.
PEER_COUNT = 4_000
#: Most other queues start a process for each core.
TWO = ", 2 processes"
TWO_PROCESSES = ["--processes", "2"]


def main(arguments: list[str]) -> None:
    """On PostgreSQL."""
    own = on_database.arguments_of("orders", ["postgresql"], arguments)
    if own is not None:
        measure(common.options(own, RUNS))


def measure(options: common.Options) -> None:
    """The ways by turns, so that a slow minute of the machine meets all of them."""
    count = options.scaled(COUNT, 1_000)
    worker = [word for word in options.worker if word != "--peers"]
    peers = _installed() if len(worker) < len(options.worker) else []
    os.environ["DELAYQ_BENCH_SHOP"] = "1"
    with common.bench_server():
        from django.core.management import call_command

        call_command("migrate", verbosity=0, run_syncdb=True)
        from tests.benchmarks.shop import tasks

        tasks_of = {
            "single": tasks.close_order,
            "batch": tasks.close_orders,
            "exactly once": tasks.close_orders_once,
        }
        ways = {
            f"{name}{more}": (task, TWO_PROCESSES if more else [])
            for name, task in tasks_of.items()
            for more in ("", TWO)
        }
        found: dict[str, list[float]] = {"bare": [], "bare single": [], **{way: [] for way in ways}}
        for number in range(options.runs + 1):
            found["bare"].append(_bare(count))
            found["bare single"].append(_bare_single(count // 4))
            for way, (task, more) in ways.items():
                # A quarter for the slow ways: their rate does not depend on the number.
                orders = count // 4 if way.startswith("single") else count
                found[way].append(_ours(task, orders, [*worker, *more]))
            for peer in peers if number else ():
                _theirs(peer, options.scaled(PEER_COUNT, 500), found)
            if number == 0:  # that was the warm-up
                found = {way: [] for way in found}
    single = median(found["single"])
    theirs = {peer.name: median(found[peer.name]) for peer in peers if peer.name in found}
    python = max(
        (theirs[peer.name] for peer in peers if peer.name in theirs and not peer.node), default=0
    )
    graphile = theirs.get("orders-graphile", 0)
    for way in ways:
        rate, is_single = median(found[way]), way.startswith("single")
        bare = median(found["bare single" if is_single else "bare"])
        common.report(
            "orders",
            rate,
            "orders/s",
            case=way,
            ceiling=bare,
            ceiling_is=f"bare UPDATEs of {'one row' if is_single else f'{ROWS} rows'}",
            ratio=rate / bare,
            against_single=rate / single,
            seconds=count / rate,
            to_python_peers=rate / python if python else None,
            to_graphile=rate / graphile if graphile else None,
            runs=options.runs,
        )
    two, batch = median(found[f"single{TWO}"]), median(found["batch"])
    for peer in peers:
        if rate := theirs.get(peer.name):
            common.report(
                "orders",
                rate,
                "orders/s",
                case=peer.name,
                peer=peer.name.removeprefix("orders-"),
                ours=batch,
                ours_to_peer=batch / rate,
                single_to_peer=single / rate,
                two_processes_to_peer=two / rate,
                runs=len(found[peer.name]),
                version=version(peer),
                settings=peer.settings,
            )


def _installed() -> list[Peer]:
    found = []
    for peer in PEERS:
        try:
            install(peer)
            found.append(peer)
        except NotInstalledError as error:
            print(f"orders [{peer.name}]: left out, {error}", flush=True)
    return found


def _theirs(peer: Peer, count: int, found: dict[str, list[float]]) -> None:
    try:
        found.setdefault(peer.name, []).append(close_by(peer, _orders(count)))
    except PeerFailedError as error:
        print(f"orders [{peer.name}]: {error}", flush=True)


def _orders(count: int) -> list[int]:
    """The ids of new orders, in a table that has older ones."""
    from django.db import connection

    from tests.benchmarks.shop.models import BenchOrder

    if not BenchOrder.objects.exists():
        older = [BenchOrder(state="closed") for _ in range(OLDER)]
        BenchOrder.objects.bulk_create(older, batch_size=5_000)
    BenchOrder.objects.filter(state="pending").delete()  # of a run that failed
    made = BenchOrder.objects.bulk_create([BenchOrder() for _ in range(count)], batch_size=5_000)
    with connection.cursor() as cursor:  # autovacuum would do it in the middle of some run
        cursor.execute(f"VACUUM ANALYZE {BenchOrder._meta.db_table}")
    return [order.pk for order in made]


def _bare(count: int) -> float:
    from tests.benchmarks.shop.models import BenchOrder

    ids = _orders(count)
    begun = time.perf_counter()
    for first in range(0, count, ROWS):
        chosen = BenchOrder.objects.filter(pk__in=ids[first : first + ROWS], state="pending")
        chosen.update(state="closed")
    return count / (time.perf_counter() - begun)


def _bare_single(count: int) -> float:
    from django.db import connections

    from tests.benchmarks.shop.models import BenchOrder

    ids = _orders(count)
    connections.close_all()  # the children would use the same sockets
    fork = multiprocessing.get_context("fork")
    begun = time.perf_counter()
    children = [fork.Process(target=_close_each, args=(ids[part::2],)) for part in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    took = time.perf_counter() - begun
    assert not BenchOrder.objects.filter(state="pending").exists()
    return count / took


def _close_each(ids: Sequence[int]) -> None:
    """By two threads."""
    from tests.benchmarks.shop.models import BenchOrder

    def close(part: Sequence[int]) -> None:
        for order_id in part:
            BenchOrder.objects.filter(pk=order_id, state="pending").update(state="closed")

    threads = [threading.Thread(target=close, args=(ids[part::2],)) for part in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _ours(task: Any, count: int, worker: list[str]) -> float:
    """Orders a second, from the due instant until all are closed and acked."""
    from tests.benchmarks.shop.models import BenchOrder

    ids = _orders(count)
    with common.BenchWorker(*worker, topics=task.options.topic):
        topic = task.options.topic
        task.enqueue_many((0,) for _ in range(WARM_CALLS * (task.options.batch or 1)))
        assert common.wait_until(lambda: _left(topic) == 0, 30), "the worker does not work"
        due, at = common.stored_instant(1.5 + count / 10_000)
        task.using(due_at=at).enqueue_many((order_id,) for order_id in ids)
        assert time.time() < due, "enqueueing took longer than the head start"
        time.sleep(max(0.0, due - time.time()))
        closed = common.wait_until(lambda: _left(topic) == 0, 30 + count / SLOWEST)
        took = time.time() - due
    assert closed, f"{_left(topic):,} messages of {task.name} are left"
    assert not BenchOrder.objects.filter(state="pending").exists()
    return count / took


def _left(topic: str) -> int:
    """Messages that are not acked."""
    from django_delayq import topic_stats

    stats = topic_stats(topic)
    return stats.delayed + stats.backlog + stats.leased


if __name__ == "__main__":
    main(sys.argv[1:])
