"""What runs: claiming, running and settling messages, and keeping their leases.

May import tasks, store and core, and knows no table. Start with worker.py: the attributes of
Worker are the diagram. process/ has what surrounds it: supervisor, signals, probes.
"""

from __future__ import annotations

__all__ = [
    "agenda", "batches",
    "claim_hold", "dispatcher", "event_loop", "executor", "heartbeat", "isolated",
    "lease_keeper", "listener", "middleware", "outcome", "process", "quarantine",
    "reclaimer", "resolved", "sampler", "settler", "shared", "thread_pool", "worker",
]  # fmt: skip
