"""The same workloads on other queues: an adapter each, installed into an environment of its own
under .peers/."""

from __future__ import annotations
