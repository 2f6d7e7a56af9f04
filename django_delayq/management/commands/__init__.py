"""The management commands: one module each, as Django wants it."""

from __future__ import annotations
