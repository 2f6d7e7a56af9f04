"""The way to the server: runs scripts and commands, and says what their errors mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import redis

from ..conf import Settings
from . import keys
from .connection import Client, mask
from .errors import ERRORS, translate
from .keys import Partition
from .scripts import load


class Link:
    """A client with its prefix.

    Every method raises StoreUnavailable (nothing changed), OutcomeUnknown (perhaps changed) or StoreError (a bug).
    """

    def __init__(self, client: Client, settings: Settings) -> None:
        self.client = client
        self.settings = settings
        self.prefix = settings.prefix
        self.where = mask(settings.redis)

    def call(self, name: str, partition: Partition, args: Iterable[Any]) -> Any:
        """Run a script on a partition."""
        script = load(name)
        all_keys = keys.partition_keys(self.prefix, partition)
        try:
            try:
                return self.client.execute_command("EVALSHA", script.sha, len(all_keys), *all_keys, *args)
            except redis.exceptions.NoScriptError:
                # The text itself, not LOAD and EVALSHA again: a flush in between would fail once more.
                return self.client.execute_command("EVAL", script.text, len(all_keys), *all_keys, *args)
        except ERRORS as error:
            raise translate(error, self.where) from error

    def command(self, *args: Any) -> Any:
        """Run one plain command."""
        try:
            return self.client.execute_command(*args)
        except ERRORS as error:
            raise translate(error, self.where) from error

    def clock_ms(self) -> float:
        """Redis' clock."""
        seconds, microseconds = self.command("TIME")
        return int(seconds) * 1000 + int(microseconds) / 1000

    def close(self) -> None:
        """Close the connections, those to Sentinel too."""
        self.client.close()
        pool = getattr(self.client, "connection_pool", None)  # a cluster's client has one per node
        for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
            sentinel.close()
