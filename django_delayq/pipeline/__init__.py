"""The data pipeline on Spark: jobs over the archive, the queue and the lake. Nothing here is
imported by a worker."""

from __future__ import annotations
