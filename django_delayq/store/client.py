"""Runs scripts and commands for all parts of the store, and translates errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from itertools import repeat, starmap
from typing import Any, NamedTuple

import redis
from hiredis import pack_command

from ..core.conf import Settings
from ..core.exceptions import (
    DelayQError,
    NotReplicated,
    OutcomeUnknown,
    StoreUnavailable,
    TooFewReplicas,
)
from . import keys
from .breaker import CircuitBreaker
from .clock import ServerClock
from .connection import RedisPy, close_client, mask, open_client, retire
from .connection_pool import hang_up
from .keys import Partition
from .redis_errors import ERRORS, translate
from .scripts import Script, load

#: Most messages per script call. So no script runs for long, and none comes near the limit of
#: Lua's unpack (7,999).
BATCH = 500
#: Most bytes of records per script call, but for one that is larger alone. Redis moves a MiB in
#: some milliseconds, and does nothing else meanwhile. The scripts that find the records themselves
#: know this number too (lua/shared/read.lua).
BATCH_BYTES = 512 * 1024
#: Seconds between two readings of Redis' clock: clocks drift by less than a millisecond in this
#: time.
CLOCK_REFRESH = 60.0
#: An enqueue waits for replicas (WAIT_REPLICAS) for so many seconds at most, and for half of
#: SOCKET_TIMEOUT at most.
WAIT_TIMEOUT = 1.0


class Read(NamedTuple):
    """One read of a round trip: a script on a partition, or a plain command."""

    name: str
    partition: Partition | None
    args: Sequence[Any] = ()


class RedisClient:
    """Runs scripts and commands under a prefix, and knows whether Redis answers and what its clock
    says.

    Every method raises StoreUnavailable (nothing changed), OutcomeUnknown (perhaps changed) or
    StoreError (a bug).
    """

    def __init__(self, redis_py: RedisPy | None, settings: Settings) -> None:
        if redis_py is not None:
            self.redis = redis_py
        self.settings = settings
        self.prefix = settings.prefix
        self.where = mask(settings.redis)
        self.next_where = mask(settings.redis_next)
        """To which Redis the store is to move; empty: nowhere."""
        self.load: Callable[[str], Script] = load
        """Gives the script of a name. for_tests.py puts scripts here whose clock is ahead."""
        self.ahead_ms = 0
        """How far the clock of these scripts is ahead of Redis'."""
        self.clock = ServerClock()
        self.breaker = CircuitBreaker(self._probe)
        self._changing = threading.Lock()
        self.replicas = CircuitBreaker(self._probe_replicas)
        """Open while fewer replicas than WAIT_REPLICAS keep up. Only an enqueue looks at it."""
        self._asked_at = -CLOCK_REFRESH

    @cached_property
    def redis(self) -> RedisPy:
        """The client of redis-py; made at the first use when none was given."""
        return open_client(self.settings)

    @property
    def is_cluster(self) -> bool:
        """Whether it is a cluster, where a command has keys of one slot."""
        return getattr(self.redis, "connection_pool", None) is None

    @property
    def is_one_server(self) -> bool:
        """Whether it is neither a cluster nor found by Sentinel."""
        pool = getattr(self.redis, "connection_pool", None)
        return pool is not None and not hasattr(pool, "sentinel_manager")

    def call(self, name: str, partition: Partition, args: Iterable[Any], *more_keys: str) -> Any:
        """Run a script on a partition. `more_keys`: keys of its slot besides the ten."""
        return self.begin(name, (*keys.partition_keys(self.prefix, partition), *more_keys), args)()

    def read_all(self, reads: Sequence[Read]) -> list[Any]:
        """The answers of scripts and commands that change nothing. Takes one round trip; on a
        cluster one for each read when a script is among them."""
        asked = self.redis
        # The pipeline of a cluster's client takes no scripts.
        if len(reads) == 1 or (self.is_cluster and any(read.partition for read in reads)):
            return [
                self.call(read.name, read.partition, read.args)
                if read.partition
                else self.command(read.name, *read.args)
                for read in reads
            ]
        commands = [
            (
                "EVALSHA",
                self.load(name).sha,
                len(on := keys.partition_keys(self.prefix, part)),
                *on,
                *args,
            )
            if part
            else (name, *args)
            for name, part, args in reads
        ]
        answers = self._pipelined(asked, commands, len(commands))
        if any(isinstance(answer, Exception) and self._moved(answer, asked) for answer in answers):
            return self.read_all(reads)
        # The pipeline of a cluster's client has converted them already.
        converters = {} if self.is_cluster else asked.response_callbacks
        unknown = [
            at
            for at, answer in enumerate(answers)
            if isinstance(answer, redis.exceptions.NoScriptError)
        ]
        if unknown:
            # The first one by its text: then Redis knows it, and the others are one round trip.
            first, *others = unknown
            text = self.load(reads[first].name).text
            answers[first] = self.command("EVAL", text, *commands[first][2:])
            again = self.read_all([reads[at] for at in others]) if others else ()
            for at, answer in zip(others, again, strict=True):
                answers[at] = answer
        for at, answer in enumerate(answers):
            if isinstance(answer, Exception):
                raise self.failed(answer) from answer
            if convert := converters.get(commands[at][0]):
                answers[at] = convert(answer)
        return answers

    def have_fields(self, hashes: Sequence[str], fields: Sequence[bytes]) -> list[bool]:
        """Whether each of these hashes has its field; one round trip."""
        asked = self.redis
        commands = zip(repeat("HEXISTS"), hashes, fields, strict=False)
        answers = self._pipelined(asked, commands, len(fields))
        for answer in answers:
            if isinstance(answer, Exception):
                if self._moved(answer, asked):
                    return self.have_fields(hashes, fields)
                raise self.failed(answer) from answer
        return [bool(answer) for answer in answers]

    def _pipelined(
        self, asked: RedisPy, commands: Iterable[Sequence[Any]], count: int
    ) -> list[Any]:
        """The answers of so many commands in one round trip, errors among them."""
        pool = getattr(asked, "connection_pool", None)
        try:
            if pool is None:  # a cluster's client knows which node has which key
                pipeline = asked.pipeline(transaction=False)
                for command in commands:
                    pipeline.execute_command(*command)
                answers: list[Any] = pipeline.execute(raise_on_error=False)
                return answers
            # Not by redis-py's pipeline: it takes three times as long for the thousands of commands
            # of a page about all topics.
            connection = pool.get_connection()
            with _Lent(pool, connection):
                connection.send_packed_command([b"".join(starmap(_packed, commands))])
                return [_answer_on(connection) for _ in range(count)]
        except ERRORS as error:
            raise self.failed(error) from error

    def begin(
        self, name: str, script_keys: Sequence[str], args: Iterable[Any]
    ) -> Callable[[], Any]:
        """Send a call of a script with its keys; the function that is returned reads its answer:
        call it, once.

        The caller may do other things in between. On a cluster this method waits for the answer.
        """
        return self.packed(name, script_keys, args)()

    def packed(
        self, name: str, script_keys: Sequence[str], args: Iterable[Any]
    ) -> Callable[[], Callable[[], Any]]:
        """Make all of a call but sending it: the function that is returned does what begin() does,
        as often as it is called."""
        script = self.load(name)
        arguments = (len(script_keys), *script_keys, *args)
        # redis-py packs the commands for a cluster.
        command = b"" if self.is_cluster else _packed("EVALSHA", script.sha, *arguments)

        def begin() -> Callable[[], Any]:
            asked = self.redis
            pool = getattr(asked, "connection_pool", None)  # a cluster's client has one per node
            if pool is None:
                evalsha = partial(asked.execute_command, "EVALSHA", script.sha, *arguments)
                answer = self._scripted(asked, script, arguments, evalsha)
                return lambda: answer
            # Not through redis-py's execute_command: its retries, which we do not want, and its
            # metrics double the client's time.
            # Without a command: the store has moved here from a cluster just now.
            packed = command or _packed("EVALSHA", script.sha, *arguments)
            connection = self._send(pool, packed)

            def read() -> Any:
                with _Lent(pool, connection):
                    return connection.read_response()

            return lambda: self._scripted(asked, script, arguments, read)

        return begin

    def begin_replicated(
        self, name: str, script_keys: Sequence[str], args: Iterable[Any]
    ) -> Callable[[], Any]:
        """begin() for a write that WAIT_REPLICAS replicas must have, too.

        The function that is returned raises NotReplicated with the answer when they do not have it
        in time. After that this method raises TooFewReplicas until they keep up again.
        """
        if self.replicas.open:
            raise TooFewReplicas
        script = self.load(name)
        arguments = (len(script_keys), *script_keys, *args)
        asked = self.redis
        pool = getattr(asked, "connection_pool", None) or self._node_pool(script_keys[0])
        connection = self._send(pool, _packed("EVALSHA", script.sha, *arguments))

        def read() -> Any:
            try:
                with _Lent(pool, connection):
                    try:
                        answer = connection.read_response()
                    except redis.exceptions.NoScriptError:
                        connection.send_command("EVAL", script.text, *arguments)
                        answer = connection.read_response()
                    # On the same connection: WAIT asks for the writes of its own connection.
                    connection.send_command("WAIT", self.settings.wait_replicas, self._wait_ms)
                    replicas = connection.read_response()
            # MovedError is an AskError.
            except (redis.exceptions.AskError, redis.exceptions.TryAgainError):
                again = partial(asked.execute_command, "EVALSHA", script.sha, *arguments)
                answer, replicas = self._scripted(asked, script, arguments, again), 0
            except ERRORS as error:
                if self._moved(error, asked):
                    return self.begin_replicated(name, script_keys, args)()
                raise self.failed(error) from error
            if replicas < self.settings.wait_replicas:
                self.replicas.trip()
                raise NotReplicated(answer)
            return answer

        return read

    def _node_pool(self, key: str) -> Any:
        """The connections to the node of a cluster that has the key."""
        try:
            node = self.redis.get_node_from_key(key)
            return self.redis.get_redis_connection(node).connection_pool
        except ERRORS as error:
            raise self.failed(error) from error

    @property
    def _wait_ms(self) -> int:
        return int(1000 * min(WAIT_TIMEOUT, self.settings.socket_timeout / 2))

    def _probe_replicas(self) -> None:
        """Raise an error unless enough replicas have all that the primary has. Of a cluster, it
        asks one primary."""
        pool = getattr(self.redis, "connection_pool", None) or self._node_pool(self.prefix)
        # WAIT asks for what the primary had at the last command of the connection.
        connection = self._send(pool, _packed("TIME"))
        with _Lent(pool, connection):
            connection.read_response()
            connection.send_command("WAIT", self.settings.wait_replicas, self._wait_ms)
            replicas = connection.read_response()
        if replicas < self.settings.wait_replicas:
            raise TooFewReplicas

    def _send(self, pool: Any, command: bytes) -> Any:
        """Send a packed command on a connection of the pool, and return the connection."""
        try:
            connection = pool.get_connection()
            try:
                connection.send_packed_command([command])
            except BaseException:
                connection.disconnect()
                pool.release(connection)
                raise
        except ERRORS as error:
            raise self.failed(error) from error
        return connection

    def _scripted(
        self,
        asked: RedisPy,
        script: Script,
        arguments: tuple[Any, ...],
        evalsha: Callable[[], Any],
    ) -> Any:
        try:
            return evalsha()
        except redis.exceptions.NoScriptError:
            # The text itself, not LOAD and EVALSHA again: a flush in between would fail once more.
            return self.command("EVAL", script.text, *arguments)
        except ERRORS as error:
            if self._moved(error, asked):
                return self.command("EVAL", script.text, *arguments)
            raise self.failed(error) from error

    def command(self, *args: Any) -> Any:
        """Run one plain command."""
        asked = self.redis
        try:
            return asked.execute_command(*args)
        except ERRORS as error:
            if self._moved(error, asked):
                return self.command(*args)
            raise self.failed(error) from error
        except BaseException:
            _drop_idle(asked)
            raise

    def clock_ms(self) -> float:
        """Redis' clock. now_us() follows it."""
        seconds, microseconds = self.command("TIME")
        now_ms = int(seconds) * 1000 + int(microseconds) / 1000 + self.ahead_ms
        self.clock.sync(int(now_ms * 1000))
        return now_ms

    def now_us(self) -> int:
        """Redis' clock in microseconds as this process knows it; this machine's while Redis cannot
        be asked.

        For messages that SQL accepts before Redis hears of them.
        """
        if time.monotonic() - self._asked_at >= CLOCK_REFRESH and not self.breaker.open:
            try:
                self.clock_ms()
            except DelayQError:
                self.breaker.trip()
            self._asked_at = time.monotonic()
        return int(self.clock.now_ms() * 1000)

    def failed(self, error: Exception) -> DelayQError:
        """Our exception for redis-py's. Drops the connections that may lead to a server that is
        down."""
        if self._moved(error, self.redis):
            return StoreUnavailable(
                "The store has moved just now. Nothing was changed: call again."
            )
        failure = translate(error, self.where)
        # The client of a cluster has no pool: it looks after its nodes itself.
        pool: Any = getattr(self.__dict__.get("redis"), "connection_pool", None)
        if (
            isinstance(error, redis.ConnectionError | redis.TimeoutError)
            and not isinstance(error, redis.exceptions.MaxConnectionsError)
            and hasattr(pool, "suspect")
        ):
            # When nothing was sent, this call has not waited for an answer: the other calls that
            # wait may still get theirs.
            pool.suspect(
                isinstance(error, redis.TimeoutError) and isinstance(failure, OutcomeUnknown)
            )
        return failure

    def _moved(self, error: Exception, asked: RedisPy) -> bool:
        """Whether the call was refused because the store moves, and is to be made again: the store
        serves now, here or elsewhere. Waits until that is decided."""
        if "WRONGTYPE" not in str(error):  # what a frozen store answers
            return False
        if asked is not self.redis:
            return True
        from .moving.follow import serving_client

        found = serving_client(asked, self.settings)
        if found is not None:
            self._change_over(asked, found)
        return found is not None

    def has_arrived(self) -> bool:
        """Whether the store is at REDIS_NEXT: then this process uses it from now on."""
        if self.where == self.next_where:
            return False
        from .moving.follow import arrived

        found = arrived(self.settings)
        if found is not None:
            self._change_over(self.redis, found)
        return found is not None

    def _change_over(self, before: RedisPy, found: RedisPy) -> None:
        """Use this client from now on. Calls that are on their way end on the one before."""
        with self._changing:
            if found is before:
                return
            if self.redis is not before:  # another thread was first
                close_client(found)
                return
            self.redis, self.where = found, self.next_where
        self.clock.forget()
        self._asked_at = -CLOCK_REFRESH
        retire(before)

    def _probe(self) -> None:
        """Raise an error unless Redis is back. Asks the Sentinels first: an old primary that wakes
        up does not count."""
        pool: Any = getattr(self.redis, "connection_pool", None)
        if hasattr(pool, "sentinel_manager"):
            pool.sentinel_manager.check()
        try:
            self.clock_ms()
        except DelayQError:
            if not self.next_where or not self.has_arrived():  # and the old one is switched off
                raise

    def stop(self) -> None:
        """End the threads that ask whether Redis is back."""
        self.breaker.stop()
        self.replicas.stop()

    def close(self) -> None:
        """Close the connections, those to Sentinel too."""
        self.stop()
        if "redis" in self.__dict__:
            close_client(self.redis)


class _Lent:
    """A connection to read answers from, which goes back to its pool in the end.

    After an error that is no answer of the server, such as a Ctrl-C or a time limit by a signal,
    the answer may still come. It would be that of the next call: so the connection is closed.
    """

    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: Any, connection: Any) -> None:
        self._pool, self._connection = pool, connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, redis.ResponseError):
            self._connection.disconnect()
        self._pool.release(self._connection)


def _packed(*command: Any) -> bytes:
    """As it is sent. redis-py looks at each argument first, which takes five times as long."""
    packed: bytes = pack_command(command)
    return packed


def _answer_on(connection: Any) -> Any:
    """The next answer, also one that is an error."""
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def _drop_idle(asked: RedisPy) -> None:
    """The same after a call of redis-py's, which has given its connection back already."""
    pool = getattr(asked, "connection_pool", None)  # a cluster's client has one per node
    if pool is not None:
        hang_up(pool, in_use=False)
