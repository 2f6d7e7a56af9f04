"""Everything that runs."""

from __future__ import annotations
