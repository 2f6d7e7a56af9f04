"""Checks before a worker starts, and the first lines that it prints."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import django
from django.conf import settings as django_settings

from ...core.conf import get_settings
from ...core.exceptions import ConfigurationError, OutcomeUnknown, StoreUnavailable
from ...core.present import on_one_line
from ...core.service import Sleeper
from ...core.times import in_words, now_ms
from ...core.version import PACKAGE_VERSION
from ...store.beats import is_alive
from ...store.inspection import ServerReport, inspect_server
from ...store.store import RedisStore
from ...store.topic_state import stats_of_topic
from ...tasks import registry

Say = Callable[[str], None]


def choose_topics(option: str) -> tuple[tuple[str, ...], dict[str, int]]:
    """Topics and weights of `--topics`: `all`, `orders,mail`, `orders:3,mail:1`, or `-mail` for all
    but mail.

    Raises ConfigurationError for a topic that nobody declares.
    """
    known = sorted(registry.served_topics())
    names = [part.strip() for part in option.split(",") if part.strip()]
    weights: dict[str, int] = {}
    for topic, weight in (name.split(":", 1) for name in names if ":" in name):
        if not weight.isdecimal() or not 1 <= int(weight) <= 100:
            raise ConfigurationError(
                f"--topics: '{topic}:{weight}': a weight is a whole number from 1 to 100."
            )
        if topic == "all" or topic.startswith("-"):
            raise ConfigurationError(
                f"--topics: {topic!r} takes no weight: name the topics that are to have one."
            )
        weights[topic] = int(weight)
    plain = [name.partition(":")[0] for name in names]
    for name in plain:
        if name != "all" and get_settings().is_for_api(name.lstrip("-")):
            raise ConfigurationError(
                f"--topics: {name.lstrip('-')!r} is consumed over HTTP (API_TOPICS); no worker "
                "serves it."
            )
        if name != "all" and name.lstrip("-") not in known:
            raise ConfigurationError(
                f"--topics: {name.lstrip('-')!r} is not declared. Known: {', '.join(known)}."
            )
    excluded = {name[1:] for name in plain if name.startswith("-")}
    included = [name for name in plain if not name.startswith("-")]
    chosen = known if not included or "all" in included else included
    topics = tuple(name for name in dict.fromkeys(chosen) if name not in excluded)
    if not topics:
        raise ConfigurationError(
            f"--topics: {option!r} leaves nothing to serve. Known: {', '.join(known)}."
        )
    return topics, weights


def wait_for_redis(store: RedisStore, seconds: float, say: Say) -> list[ServerReport]:
    """Inspect the servers. If they cannot be reached, say so at once and try again for `seconds`.

    Raises StoreUnavailable when the time is over.
    """
    until, is_reported, sleeper = time.monotonic() + seconds, False, Sleeper()
    while True:
        try:
            reports = inspect_server(store)
            # A Redis that still loads its data tells about itself, and gives no data.
            store.workers.heartbeats()
        # OutcomeUnknown comes from a proxy in front of a Redis that is down.
        except (StoreUnavailable, OutcomeUnknown) as error:
            if time.monotonic() >= until:
                raise StoreUnavailable(str(error)) from error
            if not is_reported:
                say(
                    f"{error}\nStart one, set DELAYQ['REDIS'], or try the embedded one: "
                    f"python manage.py run_delayq --embedded. Trying again for {seconds:.0f} s ..."
                )
                is_reported = True
            sleeper.wait(min(0.5, until - time.monotonic()))
        else:
            return reports


def port_here(where: str) -> int | None:
    """The port of this machine that DELAYQ["REDIS"] names, for a server to be started there; None:
    another place.

    Raises ConfigurationError when somebody listens there already.
    """
    if "://" not in where:  # an entry of CACHES, or nothing
        location = django_settings.CACHES.get(where, {}).get("LOCATION")
        where = location if isinstance(location, str) else ""
    url = urlsplit(where)
    if url.scheme != "redis" or url.hostname not in ("127.0.0.1", "localhost") or url.password:
        return None
    port = url.port or 6379
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise ConfigurationError(
                f"--embedded: somebody listens on port {port} already, where DELAYQ['REDIS'] "
                f"points. Is it a Redis? Then leave --embedded out."
            ) from None
    return port


def banner(
    store: RedisStore, reports: list[ServerReport], topics: tuple[str, ...], say: Say
) -> None:
    """Print the process, the servers, the topics, and how many messages wait."""
    where = f"{socket.gethostname()}:{os.getpid()}"
    python = platform.python_version()
    say(
        f"django-delayq {PACKAGE_VERSION} · Django {django.get_version()} · Python {python} · "
        f"{where}"
    )
    for report in reports:
        aof = f"AOF {report.fsync or 'on'} ✓" if report.aof else "AOF off"
        eviction = (
            "noeviction ✓"
            if report.eviction == "noeviction"
            else f"eviction {report.eviction or 'unknown'}"
        )
        say(
            f"  redis     {store.client.where}  {report.name} · {eviction} · {aof} · clock skew "
            f"{report.skew_ms:.1f} ms"
        )
    settings = get_settings()
    partitions = {name: len(store.partitions.all(name)) for name in topics}
    names = [f"{name} ×{count}" if count > 1 else name for name, count in partitions.items()]
    say(f"  topics    {'  '.join(names)}")
    stats = [
        stats_of_topic(name, store.queries.all_stats(store.partitions.all(name))) for name in topics
    ]
    for stat in stats:
        if stat.paused:
            who, why = on_one_line(stat.paused.by), on_one_line(stat.paused.reason)
            reason = f', "{why}"' if why else ""
            say(f"  paused    {stat.topic} (by {who or 'unknown'}{reason})")
    heads = [stat.next_due_at for stat in stats if stat.next_due_at is not None]
    head = (
        f" · next due in {in_words(max(0.0, min(heads).timestamp() - time.time()))}"
        if heads
        else ""
    )
    waiting, due = sum(stat.delayed for stat in stats), sum(stat.backlog for stat in stats)
    say(
        f"  backlog   {waiting:,} waiting · {due:,} due · {sum(stat.leased for stat in stats):,} "
        f"running{head}"
    )
    alive = [beat for beat in store.workers.heartbeats().values() if is_alive(beat, now_ms(), 6)]
    say(
        f"  workers   {len(alive)} others alive · {len(registry.by_name)} tasks known · prefix "
        f"{settings.prefix}"
    )
    sys.stdout.flush()
