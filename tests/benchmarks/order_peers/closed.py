"""Runs another queue on orders: its queue is full before its workers begin, and its time begins when
it has closed some of them, as our worker has worked before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.benchmarks import common
from tests.benchmarks.peers.catalogue import ROOT, Peer
from tests.benchmarks.peers.session import PeerFailedError, postgres_url
from tests.servers import launcher

#: Seconds for a worker to close its first orders, and for each thousand of them.
START, EACH_THOUSAND = 60, 60
#: An eighth is closed before its time begins: its threads have connections then.
WARM_PART = 8


def close_by(peer: Peer, ids: Sequence[int]) -> float:
    """Orders a second. Raises PeerFailedError."""
    from django.db import connection

    from tests.benchmarks.shop.models import BenchOrder

    # By the index: to look through all orders takes time from those who close them.
    pending = BenchOrder.objects.filter(pk__gte=min(ids), state="pending")
    with tempfile.TemporaryDirectory() as folder, launcher("redis7") as server:
        environment = {**os.environ, **_environment(peer, server.url)}
        _enqueue(peer, ids, environment)
        log = Path(folder) / "worker.log"
        with log.open("wb") as out:
            processes = [
                subprocess.Popen(
                    peer.command(line, server.url),
                    env=environment, cwd=ROOT, stdout=out, stderr=out, start_new_session=True,
                )
                for line in peer.workers
            ]  # fmt: skip
        try:
            left = len(ids) - len(ids) // WARM_PART
            if not common.wait_until(lambda: pending.count() <= left, START, every=0.005):
                raise PeerFailedError(f"it closed few: {log.read_text(errors='replace')[-500:]}")
            begun, first = time.perf_counter(), len(ids) - pending.count()
            if not common.wait_until(
                lambda: not pending.exists(), EACH_THOUSAND * len(ids) / 1000, every=0.01
            ):
                raise PeerFailedError(f"{pending.count():,} orders are left")
            took = time.perf_counter() - begun
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
            for process in processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # whoever is left of the group
                process.wait()
            with connection.cursor() as cursor:
                cursor.execute("DROP SCHEMA IF EXISTS graphile_worker CASCADE")
    return (len(ids) - first) / took


def _environment(peer: Peer, redis: str) -> dict[str, str]:
    from django.db import connection

    from tests.benchmarks.shop.models import BenchOrder

    entry = connection.settings_dict
    names = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")
    # Connections are kept, as all of them advise.
    kept = {**{name: entry[name] for name in names}, "CONN_MAX_AGE": 60}
    return {
        "DELAYQ_BENCH_REDIS": redis,
        "DELAYQ_BENCH_DATABASE": json.dumps(kept),
        "DELAYQ_BENCH_POSTGRES": postgres_url(entry),
        "DELAYQ_BENCH_TABLE": BenchOrder._meta.db_table,
        "DELAYQ_BENCH_PEER": str(peer.folder),
        "DELAYQ_BENCH_DJANGO_Q": "1" if peer.name == "orders-django-q" else "0",
        "DJANGO_SETTINGS_MODULE": "tests.benchmarks.order_peers.settings",
        "PYTHONPATH": str(ROOT),
    }


def _enqueue(peer: Peer, ids: Sequence[int], environment: dict[str, str]) -> None:
    if peer.node:
        command = [*peer.command(peer.workers[0], ""), "enqueue"]
    else:
        app = peer.name.removeprefix("orders-").removesuffix("-prefork").replace("-", "_")
        code = (
            "import json, sys\n"
            f"from tests.benchmarks.order_peers.{app} import enqueue\n"
            "enqueue(json.load(sys.stdin))"
        )
        command = [str(peer.folder / "bin" / "python"), "-c", code]
    done = subprocess.run(
        command, input=json.dumps(list(ids)), env=environment, cwd=ROOT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise PeerFailedError(f"its producer failed: {done.stderr.strip()[-500:]}")
