"""Says once what an error of redis-py means: not executed, unknown, or a bug."""

from __future__ import annotations

import redis

from ..exceptions import (
    DelayQError,
    OutcomeUnknown,
    StoreError,
    StoreForbidden,
    StoreFull,
    StoreLoading,
    StoreReadOnly,
    StoreUnavailable,
)

#: Redis wraps the errors of commands inside scripts differently from version to version, so words are looked for,
#: not classes. In this order: the first that matches counts. None of these has changed anything.
_NOT_EXECUTED: tuple[tuple[str, type[StoreUnavailable]], ...] = (
    ("OOM", StoreFull),
    ("command not allowed when used memory", StoreFull),
    ("READONLY", StoreReadOnly),
    ("read only replica", StoreReadOnly),
    ("MISCONF", StoreReadOnly),
    ("NOREPLICAS", StoreReadOnly),
    ("LOADING", StoreLoading),
    ("loading the dataset", StoreLoading),
    ("NOPERM", StoreForbidden),
    ("no permissions", StoreForbidden),
    ("NOAUTH", StoreForbidden),
    ("WRONGPASS", StoreForbidden),
    ("BUSY", StoreUnavailable),
    ("CLUSTERDOWN", StoreUnavailable),
    ("MASTERDOWN", StoreUnavailable),
    ("TRYAGAIN", StoreUnavailable),
    ("MOVED", StoreUnavailable),
    ("ASK ", StoreUnavailable),
    ("max number of clients", StoreUnavailable),
)
#: redis-py says these before it has sent anything.
_NOT_SENT = (
    "connecting to",
    "Too many connections",
    "No connection available",
    "No master found",
    "cannot be connected",
)


def translate(error: redis.RedisError, where: str) -> DelayQError:
    """Our exception for redis-py's, with what happened and where."""
    text = str(error)
    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        return _explain(StoreForbidden, where, text)
    if isinstance(error, redis.exceptions.OutOfMemoryError):
        return _explain(StoreFull, where, text)
    for word, kind in _NOT_EXECUTED:
        if word in text:
            return _explain(kind, where, text)
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | redis.exceptions.ClusterDownError):
        if any(word in text for word in _NOT_SENT):
            return StoreUnavailable(f"Cannot reach Redis at {where}: {text}. Nothing was sent. Is it running?")
        return OutcomeUnknown(f"The connection to Redis at {where} broke before the answer came: {text}")
    return StoreError(f"Redis at {where} answered with an error that is not expected: {text}")


def _explain(kind: type[StoreUnavailable], where: str, text: str) -> StoreUnavailable:
    return kind(f"{(kind.__doc__ or '').strip()} Redis at {where} said: {text}")
