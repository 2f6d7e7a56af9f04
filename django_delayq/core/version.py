"""The version of this package."""

from __future__ import annotations

PACKAGE_VERSION = "0.1.0"
