"""Tests that run on SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations
