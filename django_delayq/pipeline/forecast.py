"""The job forecast: see stats/outlook.py. It needs no Spark."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import msgspec

from ..core.job_report import Report, Tell
from ..stats.outlook import take_forecast
from ..store import open_store
from .params import ForecastOptions, Params, Secret


def run(spark: Any, params: Params, tell: Tell) -> Report:
    """Replace the forecast in SQL. A dry run writes nothing."""
    options, redis = params.options(ForecastOptions), params.redis
    if options.replica:
        redis = msgspec.structs.replace(redis, url=Secret(options.replica))
    with closing(open_store(redis.settings())) as source:
        return take_forecast(
            source, params.topic, options.drain_rate, write=not params.dry_run, tell=tell
        )
