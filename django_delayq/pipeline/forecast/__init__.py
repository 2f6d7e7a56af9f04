"""The job forecast: counts what will fall due.

Start with forecast.py.
"""

from __future__ import annotations

__all__ = ["forecast", "forecast_frames"]
