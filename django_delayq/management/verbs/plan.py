"""Say what a load needs, and what breaks first when it grows.

The figures come from costs that were measured on one machine: docs/how-to/capacity.md. Measure
yours, and give the file.

  python manage.py delayq plan --rate 500 --delay 30m --task-ms 8
  python manage.py delayq plan --per-day 100000000 --batch 500 --keep 14d --lake 365d
"""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from django.db import connections

from ...core.conf import get_settings
from ...core.exceptions import InvalidMessage
from ...core.present import table
from ...stats.capacity import DAY, Costs, Load, Need, plan_capacity
from ..cli import Answer, Verb, parse_duration, positive, whole

_HEAD = ("what", "needed", "", "because")
_LIMITS_HEAD = ("what breaks first", "at messages/s", "times this load", "before that")


class Command(Verb):
    """Plans capacity. Asks no server."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The load."""
        rate = parser.add_mutually_exclusive_group(required=True)
        rate.add_argument(
            "--rate", type=positive, metavar="N", help="messages a second, over a day"
        )
        rate.add_argument("--per-day", type=whole(1, 10**14), metavar="N", help="messages a day")
        numbers = (
            ("peak", positive, "the busiest minute, as a multiple of that"),
            ("size", whole(0, 2**24), "bytes of the arguments of a message, as JSON"),
            ("task-ms", positive, "milliseconds that a call takes"),
            ("task-cpu-ms", positive, "milliseconds that it computes, of those"),
            ("batch", whole(1, 10_000), "messages of one call"),
            ("archived", positive, "share of the messages that get a row, up to 1"),
            ("redis-gb", positive, "memory for data on one Redis server"),
            ("disk-gb", positive, "disk of the database"),
            ("connections", whole(1, 100_000), "connections that the database allows"),
        )
        for name, kind, words in numbers:
            default = getattr(Load, name.replace("-", "_"))
            parser.add_argument(
                f"--{name}",
                type=kind,
                default=default,
                metavar="N",
                help=f"{words} (default: {default:g})",
            )
        durations = (
            ("delay", "30m", "how long messages wait until they are due"),
            ("keep", "90d", "how long the archive keeps rows"),
            ("lake", "0d", "how long a lake keeps them; 0d: there is none"),
            ("window", "1h", "in what time a day is exported to the lake"),
        )
        for name, text, words in durations:
            parser.add_argument(
                f"--{name}",
                type=parse_duration,
                default=parse_duration(text),
                metavar="TIME",
                help=f"{words} (default: {text})",
            )
        parser.add_argument(
            "--many",
            action="store_true",
            help="messages are sent many at a time, as by enqueue_many()",
        )
        parser.add_argument(
            "--database",
            choices=sorted(Costs().archived_rows),
            help="of the archive (default: that of the settings; mysql is MariaDB, too)",
        )
        parser.add_argument(
            "--costs", type=Path, metavar="FILE", help="costs that you have measured, as JSON"
        )

    def run(self, options: dict[str, Any]) -> Answer:
        """Two tables: what is needed, and what breaks."""
        if options["archived"] > 1:
            raise InvalidMessage("--archived is a share of the messages: at most 1.")
        vendor = options["database"] or connections[get_settings().database].vendor
        if vendor not in Costs().archived_rows:
            raise InvalidMessage(f"No costs are known of a database by {vendor}: give --database.")
        load = Load(
            rate=options["rate"] or options["per_day"] / DAY,
            delay_s=options["delay"].total_seconds(),
            keep_days=options["keep"] / timedelta(days=1),
            lake_days=options["lake"] / timedelta(days=1),
            window_s=options["window"].total_seconds(),
            database=vendor,
            **{name: options[name] for name in (
                "peak", "size", "task_ms", "task_cpu_ms", "batch", "many", "archived", "redis_gb",
                "disk_gb", "connections",
            )},
        )  # fmt: skip
        found = plan_capacity(load, _read(options["costs"]) if options["costs"] else Costs())
        needs = [(need.what, _in_words(need), need.unit, need.why) for need in found.needs]
        limits = [
            (limit.what, f"{limit.rate:,.0f}", f"{limit.rate / load.rate:.2g}", limit.then)
            for limit in found.limits
        ]
        lines = [
            "",
            *table([_LIMITS_HEAD, *limits], (False, True, True, False)),
            "",
            f"{load.rate:,.1f} messages/s, {load.rate * load.peak:,.1f} in the busiest minute.",
        ]
        return Answer(
            text="\n".join(lines),
            data={
                "needs": [need._asdict() for need in found.needs],
                "limits": [limit._asdict() for limit in found.limits],
            },
            rows=[_HEAD, *needs],
            right=(False, True, False, False),
        )


def _in_words(need: Need) -> str:
    """Whole numbers as they are, others with two digits."""
    return (
        f"{need.amount:,.0f}" if need.amount >= 10 or need.amount % 1 == 0 else f"{need.amount:.2g}"
    )


def _read(path: Path) -> Costs:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Costs)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidMessage(f"{path} cannot be read: {error}.") from error
