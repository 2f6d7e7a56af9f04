"""The Redis server that all tests of a process share."""

from __future__ import annotations

import os
from functools import cache

from ..core.exceptions import ConfigurationError
from .embedded import EmbeddedServer

#: Environment variable with the URL of a server for tests. Without it one is started.
URL_VARIABLE = "DELAYQ_TEST_REDIS"


@cache
def session_url() -> str:
    """The URL in DELAYQ_TEST_REDIS, else that of an embedded server, which is started once and ends
    with this process.

    Raises ConfigurationError when there is neither.
    """
    url = os.environ.get(URL_VARIABLE)
    if url:
        if "+cluster" in url:
            raise ConfigurationError(
                f"{URL_VARIABLE} names a cluster, whose clock tests cannot move: name one server."
            )
        return url
    server = EmbeddedServer()
    try:
        server.start()
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}. Or name a server in {URL_VARIABLE}.") from None
    return server.url
