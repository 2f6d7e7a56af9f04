"""The states of a move, as both stores have them, and the scripts that change them.

The old store: (nothing) -> frozen -> moved, or frozen -> undone. The new store: copying ->
copied -> arrived. The move is decided when the old store says `moved`: one script says so, and
only while the store is frozen by this move.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from .. import keys
from ..connection import RedisPy
from ..keys import Partition


class Move(NamedTuple):
    """The state of a move in one of the two stores."""

    state: str
    """Empty: none is known. frozen, moved, undone; copying, copied, arrived."""
    id: str = ""
    until_ms: int = 0
    """From then on anybody may undo the freeze."""
    at_ms: int = 0
    """When it was undone or copied."""
    partitions: tuple[Partition, ...] = ()
    """Those that are frozen."""


def move_in(redis_py: RedisPy, prefix: str) -> Move:
    """The state of the move in this store."""
    fields = redis_py.execute_command("HGETALL", keys.move_key(prefix))
    texts = {name.decode(): value.decode() for name, value in fields.items()}
    pairs = (word.rpartition(":") for word in texts.get("partitions", "").split())
    return Move(
        texts.get("state", ""),
        texts.get("id", ""),
        int(texts.get("until_ms", 0)),
        int(texts.get("at_ms", 0)),
        tuple(Partition(topic, int(number)) for topic, _, number in pairs),
    )


def set_move(redis_py: RedisPy, prefix: str, state: str, move_id: str) -> None:
    """Write a state of the new store."""
    key = keys.move_key(prefix)
    redis_py.execute_command("HSET", key, "state", state, "id", move_id)


def freeze(
    redis_py: RedisPy,
    prefix: str,
    move_id: str,
    for_ms: int,
    partitions: Sequence[Partition],
    topics: Iterable[bytes],
) -> str:
    """Freeze the store for so long at least. Returns the word of freeze.lua."""
    return _run(
        redis_py,
        "freeze",
        (keys.move_key(prefix), keys.topics_key(prefix), *_pairs(prefix, partitions)),
        (move_id, for_ms, " ".join(map(str, partitions)), *topics),
    )


def thaw(redis_py: RedisPy, prefix: str, move: Move, follows: str, *, late: bool = False) -> str:
    """Give every key its value back. Returns the word of thaw.lua."""
    script_keys = (keys.move_key(prefix), *_pairs(prefix, move.partitions))
    return _run(redis_py, "thaw", script_keys, (move.id, follows, int(late)))


def decide(redis_py: RedisPy, prefix: str, move_id: str, state: str, next_state: str) -> str:
    """Go from a state to the next one. Returns the state afterwards."""
    return _run(redis_py, "decide", (keys.move_key(prefix),), (move_id, state, next_state))


def _pairs(prefix: str, partitions: Iterable[Partition]) -> Iterable[str]:
    for key in keys.frozen_keys(prefix, partitions):
        yield key
        yield keys.resting_key(prefix, key)


def _run(
    redis_py: RedisPy, name: str, script_keys: Sequence[str], args: Sequence[str | bytes | int]
) -> str:
    answer = redis_py.execute_command("EVAL", _text(name), len(script_keys), *script_keys, *args)
    return str(answer.decode())


@lru_cache(maxsize=3)
def _text(name: str) -> str:
    path = files("django_delayq.store") / "lua" / "move" / f"{name}.lua"
    return path.read_text(encoding="utf-8")
