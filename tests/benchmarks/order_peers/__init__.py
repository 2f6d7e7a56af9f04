"""The workload `orders` on other queues. Each module is an app of one of them, which runs in an
environment of its own: its enqueue(ids) fills the queue, and its workers close the orders."""

from __future__ import annotations
