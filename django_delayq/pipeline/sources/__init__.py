"""Where the pipeline reads: the archive and the queue."""

from __future__ import annotations
