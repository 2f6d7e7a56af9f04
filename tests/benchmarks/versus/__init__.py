"""One question to one lake, asked in several ways, each in a process of its own: see
pipeline_versus.py."""

from __future__ import annotations
