"""Which other queues close orders, what they need, and how each is usually run for it."""

from __future__ import annotations

from tests.benchmarks.peers.catalogue import Peer

_DJANGO = ("Django>=5.2,<6", "psycopg[binary]")
_HERE = "tests.benchmarks.order_peers"

PEERS = (
    Peer(
        "orders-celery",
        ("celery", "redis", "hiredis", "packaging", *_DJANGO),
        (
            f"{{bin}}/celery -A {_HERE}.celery worker -P threads -c 8 --loglevel ERROR"
            " --without-gossip --without-mingle --without-heartbeat",
        ),
        "8 threads, acks_late, no gossip, mingle, heartbeat",
    ),
    Peer(
        "orders-celery-prefork",
        ("celery", "redis", "hiredis", "packaging", *_DJANGO),
        (
            f"{{bin}}/celery -A {_HERE}.celery worker -P prefork -c 2 --loglevel ERROR"
            " --without-gossip --without-mingle --without-heartbeat",
        ),
        "2 processes, acks_late, no gossip, mingle, heartbeat",
    ),
    Peer(
        "orders-dramatiq",
        ("dramatiq", "redis", "hiredis", *_DJANGO),
        (f"{{bin}}/dramatiq {_HERE}.dramatiq -p 2 -t 8",),
        "2 processes, 8 threads",
    ),
    Peer(
        "orders-huey",
        ("huey", "redis", "hiredis", *_DJANGO),
        (f"{{bin}}/huey_consumer {_HERE}.huey.queue -w 8 -k thread -q",),
        "8 threads, results=False",
    ),
    Peer(
        "orders-django-q",
        ("django-q2", "redis", "hiredis", *_DJANGO),
        ("{bin}/python -m django qcluster",),
        "2 processes, Redis as broker, save_limit=-1",
    ),
    Peer(
        "orders-rq",
        ("rq", "redis", "hiredis", *_DJANGO),
        ("{bin}/rq worker --quiet -w rq.SimpleWorker -u {url}",) * 2,
        "2 SimpleWorkers (no fork per job), result_ttl=0",
    ),
    Peer(
        "orders-graphile",
        ("graphile-worker", "pg"),
        ("node {here}/../order_peers/graphile.mjs",),
        "Node, jobs in the same PostgreSQL, concurrency 24",
    ),
    Peer(
        "orders-bullmq",
        ("bullmq", "ioredis", "pg"),
        ("node {here}/../order_peers/bullmq.mjs",),
        "Node, node-postgres, concurrency 24, removeOnComplete",
    ),
)
