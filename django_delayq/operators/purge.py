"""Purges a topic from code, with the record that the page leaves."""

from __future__ import annotations


def purge_topic(topic: str, *, reason: str = "purged") -> int:
    """Cancel everything that waits in a topic, in Redis and in the outbox; what runs goes on.
    Returns how many.

    It is stored as a bulk operation and as an operator action. Raises UnknownTopic.
    """
    # Not above: models need the apps, and the package's own namespace imports this module.
    from .bulk_run import purge_in_place

    return purge_in_place(topic, reason)
