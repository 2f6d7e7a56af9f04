"""Moves the store: checks, carries everything over while nobody can change it, and decides.

By `copy` the keys of our prefix are carried over while the store is frozen. By `replica` the new
server copies the old one while it serves, and the freeze lasts only until it has the rest.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from urllib.parse import unquote, urlsplit

from ...core.conf import Settings
from ...core.exceptions import DelayQError, MoveRefused, MoveUndone, StoreError
from .. import keys
from ..beats import is_alive
from ..connection import RedisPy, close_client, mask, open_client
from ..keys import Partition
from ..redis_errors import ERRORS, translate
from .follow import asking, clock_ms, next_settings
from .freeze import Move, decide, freeze, move_in, set_move, thaw

#: Up to this many messages the way is `copy`, unless another is ordered. It takes about a second.
COPIED_AT_MOST = 100_000
#: Milliseconds by which the clocks of the two servers may differ: due times and leases count by
#: them.
SKEW_MS = 250
#: Keys of one round trip.
AT_ONCE = 500
#: Seconds after which a replica that has no connection to the old server gets none.
UNCONNECTED_S = 15.0
#: Bytes that the new replica may be behind when we freeze.
BEHIND = 1_000_000
#: Seconds after the decision in which processes that have not changed over may still write answers
#: of the HTTP API to the old store: these keys are not frozen.
LATE_S = 1.0


@dataclass(frozen=True)
class Counts:
    """What a store has."""

    waiting: int = 0
    leased: int = 0
    records: int = 0
    finished: int = 0
    """Ended messages that are not yet archived."""
    followers: int = 0
    topics: int = 0


@dataclass
class MovePlan:
    """What a move would do, and what speaks against it."""

    by: str
    counts: Counts
    old: str
    """The old server: its version."""
    new: str
    skew_ms: float
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MoveReport:
    """What a move has done."""

    by: str
    before: Counts
    after: Counts
    frozen_ms: int
    """For how long no call was answered. 0: the move was decided before this run."""
    late: int
    """Answers of the HTTP API that were written to the old store while processes changed over, and
    were carried over."""
    saved: bool
    """Whether the old server keeps on its disk that the store has moved."""


class StoreMover:
    """One move from DELAYQ["REDIS"] to DELAYQ["REDIS_NEXT"].

    Every method raises StoreUnavailable when one of the servers cannot be asked, and StoreError.
    """

    def __init__(self, settings: Settings, progress: Callable[[str], None] = lambda text: None):
        self.settings, self.next_settings = settings, next_settings(settings)
        self.prefix = settings.prefix
        self.old, self.new = open_client(settings), open_client(self.next_settings)
        self._progress = progress
        self._frozen_at = 0.0

    def close(self) -> None:
        """Close the connections."""
        close_client(self.old)
        close_client(self.new)

    # Before

    def plan(self, by: str = "") -> MovePlan:
        """What a move would do. `by`: copy or replica; empty: copy for a small store."""
        olds, news = self._info(self.old, self.settings), self._info(self.new, self.next_settings)
        if olds["run_id"] == news["run_id"]:
            raise MoveRefused("DELAYQ['REDIS'] and DELAYQ['REDIS_NEXT'] lead to the same server.")
        with asking(self.settings):
            counts = self._counts(self.old)
        by = by or ("copy" if counts.records + counts.finished <= COPIED_AT_MOST else "replica")
        with asking(self.settings):
            before, now, after = map(clock_ms, (self.old, self.new, self.old))
        skew = now - (before + after) / 2
        plan = MovePlan(by, counts, _name(olds), _name(news), skew)
        if abs(skew) > SKEW_MS:
            plan.problems.append(
                f"The clocks of the servers differ by {abs(skew):,.0f} ms, and {SKEW_MS} are too "
                "much: due times and leases count by them. Set them by NTP."
            )
        plan.problems += self._unaware()
        plan.problems += self._no_room(olds, news)
        checks = self._against_copy if by == "copy" else self._against_replica
        plan.problems += checks(olds, news)
        if news["role"] == "master":
            plan.problems += self._unreadable()
        return plan

    def state(self) -> Move:
        """How far a move of the old store is."""
        with asking(self.settings):
            return move_in(self.old, self.prefix)

    def _unaware(self) -> Iterator[str]:
        with asking(self.settings):
            beats = self._heartbeats()
        unaware = [name for name, known in beats.items() if known != mask(self.settings.redis_next)]
        if unaware:
            yield (
                f"{len(unaware)} workers do not know DELAYQ['REDIS_NEXT'] or have another one: "
                f"{', '.join(sorted(unaware)[:5])}. Start them again with the setting."
            )

    def _heartbeats(self) -> dict[str, str]:
        raw = self.old.execute_command("HGETALL", keys.workers_key(self.prefix))
        beats = {name.decode(): json.loads(value) for name, value in raw.items()}
        now_ms = clock_ms(self.old)
        return {
            name: str(beat.get("next", ""))
            for name, beat in beats.items()
            if is_alive(beat, now_ms, 3)
        }

    def _no_room(self, olds: dict[str, Any], news: dict[str, Any]) -> Iterator[str]:
        most = int(news.get("maxmemory", 0))
        if most and int(news["used_memory"]) + int(olds["used_memory"]) > most:
            yield (
                f"The new server has maxmemory {most:,}, and the old one uses "
                f"{int(olds['used_memory']):,} bytes. Raise it."
            )
        policy = str(news.get("maxmemory_policy", "noeviction"))
        if most and policy != "noeviction":
            yield f"The new server evicts keys ({policy}): set maxmemory-policy noeviction."
        if news["role"] != "master" and news.get("master_port") != olds.get("tcp_port"):
            yield "The new server is a replica of another one."

    def _against_copy(self, olds: dict[str, Any], news: dict[str, Any]) -> Iterator[str]:
        if news["role"] != "master":
            yield "The new server is a replica: run `REPLICAOF NO ONE` there, and empty it."
            return
        if self._foreign(self.new):
            yield (
                f"The new store has keys under the prefix {self.prefix!r} that no move has left "
                "there. Is it in use? Else delete them."
            )

    def _unreadable(self) -> Iterator[str]:
        probe = f"{self.prefix}:move:probe"
        try:
            self.old.execute_command("ZADD", probe, 1, "probe")
            dump = self.old.execute_command("DUMP", probe)
            self.new.execute_command("RESTORE", probe, 0, dump, "REPLACE")
        except ERRORS as error:
            yield f"The new server cannot take values of the old one: {error}"
        with suppress(*ERRORS):
            self.old.execute_command("DEL", probe)
            self.new.execute_command("DEL", probe)

    def _against_replica(self, olds: dict[str, Any], news: dict[str, Any]) -> Iterator[str]:
        for where in (self.settings.redis, self.settings.redis_next):
            if urlsplit(where).scheme != "redis":
                yield f"{mask(where)} does not begin with redis://. Use --way copy."
        if _database(self.old) != _database(self.new):
            yield "A replica has the same database numbers: REDIS_NEXT has to name that of REDIS."
        if _version(news) < _version(olds):
            yield f"The new server ({_name(news)}) is older than the old one ({_name(olds)})."
        used = any(map(_is_database, news))
        if news["role"] == "master" and used and not self._left_by_move():
            yield "The new server is not empty. A replica loses what it had: empty it."
        total = sum(value["keys"] for name, value in olds.items() if _is_database(name))
        ours = sum(1 for _ in self._scan(self.old))
        if total - ours > ours // 100 + 10:  # some came and went between the two counts
            yield (
                f"The old server has {total - ours:,} keys of others, and a replica copies all of "
                "them. Use --way copy."
            )

    def _foreign(self, redis_py: RedisPy) -> bool:
        """Whether the new store has keys of ours that no move has left there."""
        return next(self._scan(redis_py), None) is not None and not self._left_by_move()

    def _left_by_move(self) -> bool:
        with asking(self.next_settings):
            state = move_in(self.new, self.prefix).state
        return state in ("copying", "copied", "frozen")

    # The move

    def run(self, by: str, limit_s: float) -> MoveReport:
        """Move the store, or end a move that was decided before. `limit_s`: after so many seconds
        the freeze is undone. Raises MoveUndone and MoveRefused."""
        move = self.state()
        if move.state == "frozen":
            self.undo(move)
            move = self.state()
        if move.state == "moved":
            with asking(self.settings):
                before = self._counts(self.old, rests=True)
            return self._end(by, move, before, None, 0)
        if by == "replica":
            self._replicate()
        else:
            self._empty_new()
        move = self.freeze(limit_s)
        try:
            with asking(self.settings):
                before = self._counts(self.old, rests=True)
            carry = self._promote if by == "replica" else self._copy
            carry(move)
            with asking(self.next_settings):
                after = self._counts(self.new)
            if after != before:
                raise StoreError(f"The new store has {after}, and the old one had {before}.")
            self.decide(move)
        except BaseException:
            with suppress(DelayQError):
                self.undo(move)
            raise
        frozen_ms = int((time.monotonic() - self._frozen_at) * 1000)
        return self._end(by, move, before, after, frozen_ms)

    def freeze(self, limit_s: float) -> Move:
        """Freeze the old store. Every call waits from now on."""
        move_id = secrets.token_hex(8)
        word = "CHANGED"
        while word == "CHANGED":  # a topic was used for the first time meanwhile
            with asking(self.settings):
                topics = self.old.execute_command("SMEMBERS", keys.topics_key(self.prefix))
                self._frozen_at = time.monotonic()
                partitions = keys.partitions_in(topics)
                word = freeze(
                    self.old, self.prefix, move_id, int(limit_s * 1000), partitions, topics
                )
        if word != "FROZEN":
            raise MoveRefused(f"Another move of this store is {word}.")
        self._progress("frozen")
        return self.state()

    def decide(self, move: Move) -> None:
        """The move is done: from now on the new store counts."""
        with asking(self.settings):
            state = decide(self.old, self.prefix, move.id, "frozen", "moved")
        if state != "moved":
            raise MoveUndone

    def undo(self, move: Move) -> None:
        """Let the old store serve again, unless the move is decided."""
        with asking(self.settings):
            thaw(self.old, self.prefix, move, "undone")

    def _end(
        self, by: str, move: Move, before: Counts, after: Counts | None, frozen_ms: int
    ) -> MoveReport:
        """What follows the decision. It can be done again at any time."""
        with asking(self.next_settings):
            state = decide(self.new, self.prefix, move.id, "copied", "arrived")
        if state != "arrived":
            raise MoveRefused(
                f"The store has moved, and not to {mask(self.settings.redis_next)}. Is "
                "DELAYQ['REDIS_NEXT'] right?"
            )
        self._progress("moved, others change over")
        time.sleep(LATE_S)
        # Only these: what ends by itself, or was released meanwhile, is not to come back.
        answers = self._scan(self.old, keys.answer_keys(self.prefix, "*")[1])
        late = self._carry(((key, key) for key in answers), replace=False)
        with suppress(*ERRORS):  # a failover of the old server should not forget the freeze
            replicas = int(self.old.info("replication")["connected_slaves"])
            self.old.execute_command("WAIT", replicas, int(LATE_S * 1000) or 1)
        saved = True
        try:  # a server that reads an older file after a crash would serve again
            self.old.execute_command("BGSAVE")
        except ERRORS as error:
            saved = "in progress" in str(error)
        if after is None:
            with asking(self.next_settings):
                after = self._counts(self.new)
        return MoveReport(by, before, after, frozen_ms, late, saved)

    # By copy

    def _empty_new(self) -> None:
        """Delete what an earlier move has left in the new store, and mark what comes."""
        if self._foreign(self.new):
            raise MoveRefused("The new store is not empty.")
        found = list(self._scan(self.new))
        for at in range(0, len(found), AT_ONCE):
            with asking(self.next_settings):
                self.new.execute_command("UNLINK", *found[at : at + AT_ONCE])
        with asking(self.next_settings):
            set_move(self.new, self.prefix, "copying", "")

    def _copy(self, move: Move) -> None:
        resting = {
            keys.resting_key(self.prefix, key).encode(): key.encode()
            for key in keys.frozen_keys(self.prefix, move.partitions)
        }
        self._carry(chain(self._not_frozen(move), resting.items()), replace=True)
        with asking(self.next_settings):
            set_move(self.new, self.prefix, "copied", move.id)

    def _not_frozen(self, move: Move) -> Iterator[tuple[bytes, bytes]]:
        """The other keys of our prefix: results, locks, answers of the HTTP API."""
        frozen = {key.encode() for key in keys.frozen_keys(self.prefix, move.partitions)}
        rest, own = f"{self.prefix}:moved:".encode(), keys.move_key(self.prefix).encode()
        for key in self._scan(self.old):
            if key not in frozen and key != own and not key.startswith(rest):
                yield key, key

    def _carry(self, pairs: Iterable[tuple[bytes, bytes]], *, replace: bool) -> int:
        """Carry over values with the rest of their lives. Returns how many came new."""
        count, batch = 0, list[tuple[bytes, bytes]]()
        for pair in pairs:
            batch.append(pair)
            if len(batch) == AT_ONCE:
                count += self._carry_batch(batch, replace)
                batch = []
        return count + (self._carry_batch(batch, replace) if batch else 0)

    def _carry_batch(self, batch: Sequence[tuple[bytes, bytes]], replace: bool) -> int:
        with asking(self.settings):
            pipeline = self.old.pipeline(transaction=False)
            for source, _ in batch:
                pipeline.execute_command("DUMP", source)
                pipeline.execute_command("PTTL", source)
            found = pipeline.execute()
        with asking(self.next_settings):
            pipeline = self.new.pipeline(transaction=False)
            for at, (_, target) in enumerate(batch):
                value, left_ms = found[2 * at : 2 * at + 2]
                if value is not None:
                    options = ("REPLACE",) if replace else ()
                    # 0: for ever. A value that ends just now ends there.
                    for_ms = 0 if left_ms < 0 else max(1, left_ms)
                    pipeline.execute_command("RESTORE", target, for_ms, value, *options)
            answers = pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception) and "BUSYKEY" not in str(answer):
                raise translate(answer, mask(self.settings.redis_next)) from answer
        return sum(not isinstance(answer, Exception) for answer in answers)

    # By replica

    def _replicate(self) -> None:
        """Let the new server copy the old one until it is hardly behind."""
        parts = urlsplit(self.settings.redis)

        with asking(self.next_settings):
            if parts.password:
                self.new.execute_command("CONFIG", "SET", "masterauth", unquote(parts.password))
            if parts.username:
                self.new.execute_command("CONFIG", "SET", "masteruser", unquote(parts.username))
            host = parts.hostname or "127.0.0.1"
            self.new.execute_command("REPLICAOF", host, parts.port or 6379)
        heard_at = time.monotonic()
        while True:
            info = self._info(self.new, self.next_settings)
            behind = self._behind()
            if info.get("master_link_status") == "up" and behind is not None and behind < BEHIND:
                return
            if info.get("master_link_status") == "up" or info.get("master_sync_in_progress"):
                heard_at = time.monotonic()
            if time.monotonic() - heard_at > UNCONNECTED_S:
                with asking(self.next_settings):
                    self.new.execute_command("REPLICAOF", "NO", "ONE")
                raise MoveRefused(
                    "The new server gets no connection to the old one: look into its log. Does it "
                    f"reach {mask(self.settings.redis)}, and may that user run PSYNC and REPLCONF?"
                )
            self._progress(f"copying: {int(info['used_memory']):,} bytes in the new server")
            time.sleep(0.1)

    def _behind(self) -> int | None:
        """By how many bytes the new server is behind. None: it is no replica in sync."""
        olds = self._info(self.old, self.settings)
        news = self._info(self.new, self.next_settings)
        if news.get("master_replid") != olds.get("master_replid"):
            return None
        return int(olds["master_repl_offset"]) - int(news["master_repl_offset"])

    def _promote(self, move: Move) -> None:
        """Wait until the new server has the freeze, and make it a primary."""
        with asking(self.next_settings):
            # All that was written before the freeze came before it.
            while move_in(self.new, self.prefix) != move:
                if clock_ms(self.old) > move.until_ms:
                    raise MoveUndone
                time.sleep(0.005)
            self.new.execute_command("REPLICAOF", "NO", "ONE")
            word = thaw(self.new, self.prefix, move, "copied")
        if word != "THAWED":
            raise StoreError(f"The new store is {word or 'not frozen'}, not as the old one was.")

    # Asking

    def _counts(self, redis_py: RedisPy, *, rests: bool = False) -> Counts:
        """The counts of the store. `rests`: it is frozen, and its values rest elsewhere."""

        def name(key: str) -> str:
            return keys.resting_key(self.prefix, key) if rests else key

        topics = redis_py.execute_command("SMEMBERS", name(keys.topics_key(self.prefix)))
        sums = [0] * 5
        for partition in keys.partitions_in(topics):
            for at, number in enumerate(_sizes(redis_py, self.prefix, partition, name)):
                sums[at] += number
        waiting, leased, records, finished, followers = sums
        return Counts(waiting, leased, records, finished, followers, len(topics))

    def _scan(self, redis_py: RedisPy, pattern: str = "") -> Iterator[bytes]:
        with asking(self.settings if redis_py is self.old else self.next_settings):
            yield from redis_py.scan_iter(pattern or f"{self.prefix}:*", count=1000)

    def _info(self, redis_py: RedisPy, settings: Settings) -> dict[str, Any]:
        with asking(settings):
            return dict(redis_py.info())


def _sizes(
    redis_py: RedisPy, prefix: str, partition: Partition, name: Callable[[str], str]
) -> Sequence[int]:
    """Waiting, leased, records, finished, followers."""
    high, normal, low, leased, messages, _, finished, followers, *_ = map(
        name, keys.partition_keys(prefix, partition)
    )
    pipeline = redis_py.pipeline(transaction=False)
    for command, key in (
        ("ZCARD", high),
        ("ZCARD", normal),
        ("ZCARD", low),
        ("ZCARD", leased),
        ("HLEN", messages),
        ("XLEN", finished),
        ("HLEN", followers),
    ):
        pipeline.execute_command(command, key)
    *lanes, leased_count, records, ended, following = pipeline.execute()
    return (sum(lanes), leased_count, records, ended, following)


def _database(redis_py: RedisPy) -> int:
    return int(redis_py.connection_pool.connection_kwargs.get("db") or 0)


def _is_database(name: str) -> bool:
    return name.startswith("db") and name[2:].isdecimal()


def _name(info: dict[str, Any]) -> str:
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"


def _version(info: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
