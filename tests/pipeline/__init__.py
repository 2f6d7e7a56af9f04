"""Tests of the pipeline on Spark: one session for all of them."""

from __future__ import annotations
