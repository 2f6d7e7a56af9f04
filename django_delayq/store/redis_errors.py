"""Says once what an error of redis-py means: not executed, unknown, or a bug."""

from __future__ import annotations

from itertools import chain

import redis
from redis.exceptions import RedisClusterException

from ..core.exceptions import (
    DelayQError,
    OutcomeUnknown,
    StoreError,
    StoreForbidden,
    StoreFull,
    StoreLoading,
    StoreReadOnly,
    StoreUnavailable,
)

#: The exceptions of redis-py: one of the cluster client is no RedisError.
ERRORS = (redis.RedisError, RedisClusterException)

#: Versions of Redis wrap the errors of commands inside scripts differently, so we look for words,
#: not for classes. The first match counts. A command that ends with one of them changed nothing.
_NOT_EXECUTED: tuple[tuple[str, type[StoreUnavailable]], ...] = (
    ("OOM", StoreFull),
    ("command not allowed when used memory", StoreFull),
    ("READONLY", StoreReadOnly),
    ("read only replica", StoreReadOnly),
    ("previous master is now a slave", StoreReadOnly),  # what redis-py makes of it behind Sentinel
    ("MISCONF", StoreReadOnly),
    ("NOREPLICAS", StoreReadOnly),
    ("LOADING", StoreLoading),
    ("loading the dataset", StoreLoading),
    ("NOPERM", StoreForbidden),
    ("no permissions", StoreForbidden),
    ("user executing the script can't", StoreForbidden),
    ("NOAUTH", StoreForbidden),
    ("WRONGPASS", StoreForbidden),
    ("BUSY", StoreUnavailable),
    ("max number of clients", StoreUnavailable),
)
#: Where redis-py has a class for an error, it removes the word from the text.
_REFUSED: tuple[tuple[type[Exception], type[StoreUnavailable]], ...] = (
    (redis.AuthenticationError, StoreForbidden),
    (redis.exceptions.NoPermissionError, StoreForbidden),
    (redis.exceptions.OutOfMemoryError, StoreFull),
    (
        redis.exceptions.ClusterError,
        StoreUnavailable,
    ),  # down, or redis-py was sent from node to node too often
    (redis.exceptions.TryAgainError, StoreUnavailable),
    (redis.exceptions.AskError, StoreUnavailable),
)
#: redis-py says these before it has sent anything.
_NOT_SENT = (
    "connecting to",
    "Too many connections",
    "No connection available",
    "No master found",
    "cannot be connected",
    "not covered by the cluster",
)


def translate(error: Exception, where: str) -> DelayQError:
    """Our exception for redis-py's, with what happened and where."""
    if isinstance(error, RedisClusterException) and isinstance(error.__context__, redis.RedisError):
        # A call broke, then the search for the nodes. It counts whether the call was sent.
        error = error.__context__
    text = str(error).rstrip(".")
    by_class = (kind for refused, kind in _REFUSED if isinstance(error, refused))
    by_word = (kind for word, kind in _NOT_EXECUTED if word in text)
    if refusal := next(chain(by_class, by_word), None):
        return refusal(f"{refusal.meaning()} Redis at {where} said: {text or type(error).__name__}")
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | RedisClusterException):
        if any(word in text for word in _NOT_SENT):
            problem = f"Cannot reach Redis at {where}: {text}."
            advice = "Is it running?"
            if "certificate verify failed" in text.lower():
                advice = (
                    'Name the certificate of its authority in DELAYQ["REDIS"] '
                    "(?ssl_ca_certs=/path/ca.pem), and the server by a name of its certificate."
                )
            return StoreUnavailable(f"{problem} Nothing was changed. {advice}", problem=problem)
        return OutcomeUnknown(
            f"The connection to Redis at {where} broke before the answer came: {text}"
        )
    return StoreError(f"Redis at {where} answered with an error that is not expected: {text}")
