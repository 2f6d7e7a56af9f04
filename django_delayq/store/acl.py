"""The rights of a Redis user of its own for each role: one table, from which the command, the docs
and the tests take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: What only reads, and what a script needs to run.
_READING = (
    "eval", "evalsha", "time", "exists", "get", "smembers",
    "hget", "hmget", "hgetall", "hkeys", "hexists", "hscan",
    "zrange", "zrangebyscore", "zrangebylex", "zlexcount", "zscore", "zmscore", "zcount", "zcard",
    "zscan", "xlen", "xrange", "xrevrange", "xread",
)  # fmt: skip
#: What changes messages. It is one set for all who change any: a script that meets a missing right
#: in its middle has already written, and Redis keeps that.
_CHANGING = (
    "hset", "hdel", "hincrby", "set", "expire", "sadd", "zadd", "zrem", "xadd", "publish",
)  # fmt: skip
#: What the archiver does with the streams of ended messages.
_ARCHIVING = (
    "xdel", "xack", "xreadgroup", "xautoclaim", "xgroup|create", "xgroup|delconsumer",
    "xinfo|consumers",
)  # fmt: skip

#: The rights of each role. A viewer also has sadd: it notes a topic at its first use.
ROLES: Mapping[str, Sequence[str]] = {
    "producer": (*_READING, *_CHANGING),
    "worker": (*_READING, *_CHANGING, "subscribe"),
    "archiver": (*_READING, *_CHANGING, "subscribe", *_ARCHIVING),
    "viewer": (*_READING, "sadd"),
}
#: What a connection needs beside its role, by what the project uses.
FOR = {
    "database": ("select",),
    "check": ("info", "config|get"),
    "replicas": ("wait",),
    "cluster": ("command", "cluster|slots"),
}
#: Of the user of a Sentinel, which knows no keys.
SENTINEL = ("ping", "subscribe", "sentinel|masters", "sentinel|get-master-addr-by-name")


def rights_of(role: str, *uses: str) -> list[str]:
    """The rights of a role, and of what the project uses (names of FOR)."""
    return [*ROLES[role], *(right for use in uses for right in FOR[use])]


def setuser(name: str, prefix: str, rights: Sequence[str]) -> str:
    """The command that makes the user. Its password stands there as the placeholder PASSWORD."""
    channels = f" &{prefix}:*" if "subscribe" in rights or "publish" in rights else ""
    words = " ".join(f"+{right}" for right in rights)
    return f"ACL SETUSER {name} reset on >PASSWORD resetchannels ~{prefix}:*{channels} {words}"


def setuser_of_sentinel(name: str) -> str:
    """The same for a Sentinel."""
    words = " ".join(f"+{right}" for right in SENTINEL)
    return f"ACL SETUSER {name} reset on >PASSWORD allchannels {words}"
