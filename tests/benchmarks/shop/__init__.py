"""The app of the workload `orders`: other workloads do not load it."""

from __future__ import annotations
