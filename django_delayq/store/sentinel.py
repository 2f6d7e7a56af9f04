"""Follows the primary that the Sentinels name, and uses only connections that lead to it.

redis-py asks the Sentinels when it connects and never again. A primary that stood still and wakes
up calls itself primary until a Sentinel demotes it, ten seconds later: everything that is written
to it meanwhile is lost. So we listen to the Sentinels all the time, ask most of them before we
connect, and drop every connection when the primary changes.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import redis
from redis.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from .connection_pool import hang_up

Address = tuple[str, int]

#: Events of the Sentinels when a primary is down or is being replaced. Each names its address.
EVENTS = ("+odown", "+try-failover", "+promoted-slave", "+switch-master")
#: Seconds for which we use an answer of the Sentinels: after a fault many connections are made at
#: once.
ASK_INTERVAL = 1.0
#: Seconds for which we use the answer "no primary is known", so that waiting threads do not ask one
#: after the other.
REFUSAL = 0.2
#: For so many seconds after a fault we ask the Sentinels every ASK_INTERVAL, even without an event.
SUSPICION = 30.0
#: Most seconds to wait for one Sentinel: there are others.
TIMEOUT = 1.0
#: We ping a Sentinel after so many seconds of silence. After twice as many we connect to it anew.
SILENCE = 10.0


class _Out(MasterNotFoundError):
    """The Sentinels agree that the primary is down, or replace it."""


class _SentinelState(NamedTuple):
    """The state of the primary according to one Sentinel."""

    epoch: int
    """The epoch of the configuration: the highest is the newest."""
    address: Address
    replaced: bool
    """Enough Sentinels find it down, or a failover goes on."""
    unreachable: bool
    """This Sentinel does not reach it."""


class Sentinels(Sentinel):
    """The Sentinels of one primary, and what they last answered."""

    def __init__(
        self, addresses: Sequence[Address], service_name: str, **sentinel_kwargs: Any
    ) -> None:
        kwargs = {**sentinel_kwargs, "decode_responses": False}
        for name in ("socket_timeout", "socket_connect_timeout"):
            kwargs[name] = min(kwargs.get(name) or TIMEOUT, TIMEOUT)
        super().__init__(addresses, sentinel_kwargs=kwargs)  # type: ignore[no-untyped-call]
        self.service_name = service_name
        self.primary: Address | None = None
        """The address to which connections lead. None: there is no primary."""
        self.pool: weakref.ref[PrimaryPool] | None = None
        self._epoch = -1
        self._asked_at = self._refused_at = self._suspected_at = float("-inf")
        self._refusal: Exception | None = None
        self._asking = threading.Lock()
        self._heard_in = 0
        """The process that listens to the Sentinels: a fork inherits no threads."""
        self._closed = threading.Event()

    # Asking

    def discover_master(self, service_name: str) -> Address:
        """The address of the primary, not older than ASK_INTERVAL. Raises MasterNotFoundError."""
        self._hear()
        with self._asking:
            now = time.monotonic()
            if now - self._refused_at < REFUSAL and self._refusal:
                raise self._refusal
            if self.primary is None or now - self._asked_at >= ASK_INTERVAL:
                try:
                    self._lead_to(self._ask())
                except MasterNotFoundError as error:
                    if isinstance(error, _Out):
                        self._lead_to(None)
                    self._refusal, self._refused_at = error, time.monotonic()
                    raise
                self._asked_at = now
            assert self.primary is not None
            return self.primary

    def _lead_to(self, primary: Address | None) -> None:
        before, self.primary = self.primary, primary
        if before is not None and primary != before:
            self._drop()

    def _ask(self) -> Address:
        """Ask until most Sentinels have answered. Those that name the newest configuration
        count."""
        states: list[_SentinelState] = []
        silent = []
        for sentinel in list(self.sentinels):
            try:
                states.append(self._state_of(sentinel))
            except (redis.RedisError, KeyError) as error:
                silent.append((sentinel, error))
            # A Sentinel with an older configuration than ours does not count, unless all of them
            # have forgotten it.
            newest = max((state.epoch for state in states), default=-1)
            if len(states) * 2 > len(self.sentinels) and newest >= self._epoch:
                break
        for sentinel, _ in silent:  # next time those that answer come first
            self.sentinels.remove(sentinel)
            self.sentinels.append(sentinel)
        if not states:
            errors = ", ".join(f"{sentinel} - {error!r}" for sentinel, error in silent)
            raise MasterNotFoundError(f"No master found for {self.service_name!r}: {errors}")
        self._epoch = newest
        believed = [state for state in states if state.epoch == newest]
        if any(state.replaced for state in believed) or all(
            state.unreachable for state in believed
        ):
            raise _Out(f"No master found for {self.service_name!r}: the Sentinels find it down")
        return believed[0].address

    def _state_of(self, sentinel: Any) -> _SentinelState:
        state = sentinel.sentinel_masters()[self.service_name]
        host, port = sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self.service_name)
        address = (host.decode() if isinstance(host, bytes) else str(host), int(port))
        epoch = int(state["config-epoch"])
        if address != (
            state["ip"],
            int(state["port"]),
        ):  # promoted, although the failover has not ended
            return _SentinelState(epoch + 1, address, False, False)
        replaced = state["is_odown"] or "failover_in_progress" in state["flags"]
        return _SentinelState(epoch, address, bool(replaced), bool(state["is_sdown"]))

    def forget(self) -> None:
        """Ask before the next connection is made, however new the last answer is."""
        self._asked_at = self._refused_at = float("-inf")

    def suspect(self) -> None:
        """The primary has a problem: ask the Sentinels, and go on asking for a while."""
        self.forget()
        self._suspected_at = time.monotonic()

    def check(self) -> None:
        """Ask now, and drop the connections when another server is primary. When no Sentinel
        answers, nothing changes."""
        self.forget()
        with suppress(MasterNotFoundError):
            self.discover_master(self.service_name)

    def _drop(self) -> None:
        pool = self.pool and self.pool()
        if pool is not None:
            hang_up(pool)

    # Hearing

    def _hear(self) -> None:
        """Start one thread for each Sentinel, once in each process."""
        if self._heard_in == os.getpid() or self._closed.is_set():
            return
        if self._heard_in:  # a fork: another thread may have held it
            self._asking = threading.Lock()
        self._heard_in = os.getpid()
        for sentinel in self.sentinels:
            ear = threading.Thread(
                target=self._listen, args=(sentinel,), name="delayq-sentinel", daemon=True
            )
            with suppress(RuntimeError):  # no threads here: then we ask after faults only
                ear.start()

    def _listen(self, sentinel: Any) -> None:
        while not self._ended:
            pubsub = sentinel.pubsub(ignore_subscribe_messages=True)
            with suppress(redis.RedisError, OSError):
                pubsub.subscribe(*EVENTS)
                self.check()  # for events that it published before
                self._read_events(pubsub)
            with suppress(redis.RedisError, OSError):
                pubsub.close()
            self._closed.wait(ASK_INTERVAL)

    def _read_events(self, pubsub: Any) -> None:
        heard_at, pinged = time.monotonic(), False
        while not self._ended:
            message = pubsub.get_message(timeout=ASK_INTERVAL)
            now = time.monotonic()
            if message is not None:
                heard_at, pinged = now, False
                if message["type"] == "message":
                    self._heard(
                        message["channel"].decode(),
                        message["data"].decode("utf-8", "replace").split(),
                    )
            elif now - heard_at > 2 * SILENCE:
                return
            elif now - heard_at > SILENCE and not pinged:
                pubsub.ping()
                pinged = True
            if now - self._suspected_at < SUSPICION and now - self._asked_at >= ASK_INTERVAL:
                self.check()

    def _heard(self, event: str, words: Sequence[str]) -> None:
        """`mymaster ip port ...`, `master mymaster ip port ...` or `slave ... @ mymaster ip port`:
        the primary's."""
        if "@" in words:
            words = words[list(words).index("@") + 1 :]
        elif event != "+switch-master":
            words = words[1:]
        name, host, port = [*words, "", "", ""][:3]
        if name != self.service_name:
            return
        self.suspect()
        if self.primary is not None and (host, port) == (self.primary[0], str(self.primary[1])):
            self._drop()  # before we ask: its connections are of no use in any case
        self.check()

    @property
    def _ended(self) -> bool:
        return (
            self._closed.is_set()
            or self._heard_in != os.getpid()
            or self.pool is None
            or self.pool() is None
        )

    def close(self) -> None:
        """End the threads, and the connections to the Sentinels."""
        self._closed.set()
        for sentinel in self.sentinels:
            hang_up(sentinel.connection_pool)  # the threads then close the connections


class PrimaryPool(SentinelConnectionPool):
    """Connections to the primary."""

    def __init__(self, sentinels: Sentinels, *, ssl: bool = False, **kwargs: Any) -> None:
        kind = _PrimarySSLConnection if ssl else _PrimaryConnection
        super().__init__(  # type: ignore[no-untyped-call]
            sentinels.service_name, sentinels, connection_class=kind, **kwargs
        )
        sentinels.pool = weakref.ref(self)

    def suspect(self, timed_out: bool) -> None:
        """A call has failed. After a timeout the other waiting calls would wait in vain."""
        self.sentinel_manager.suspect()
        hang_up(self, in_use=timed_out)


class _Primary:
    """The differences between our connections and redis-py's."""

    connection_pool: Any
    host: str
    port: int

    def connect_to(self, address: Address) -> None:
        super().connect_to(address)  # type: ignore[misc]
        # Connecting may have taken long, and a connection that is being made cannot be dropped.
        if self.connection_pool.sentinel_manager.primary != address:
            self.disconnect()  # type: ignore[attr-defined]
            raise redis.ConnectionError(
                f"Error connecting to {address[0]}:{address[1]}: another is primary now"
            )

    def read_response(self, *args: Any, disconnect_on_error: bool = True, **kwargs: Any) -> Any:
        # redis-py's default behind Sentinel is False: then the next call would read a late answer
        # as its own.
        return super().read_response(*args, disconnect_on_error=disconnect_on_error, **kwargs)  # type: ignore[misc]


class _PrimaryConnection(_Primary, SentinelManagedConnection):  # type: ignore[misc]
    pass


class _PrimarySSLConnection(_Primary, SentinelManagedSSLConnection):  # type: ignore[misc]
    pass
