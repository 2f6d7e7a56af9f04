"""The job forecast: Redis and outbox -> what falls due when. Stands on sources/; read
forecast.py."""

from __future__ import annotations

__all__ = ["forecast", "forecast_frames"]
