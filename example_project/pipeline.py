"""`make pipeline`: the shop with a past, and what the data pipeline makes of it. Ctrl-C ends
everything."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from children import Child
from demo import create_admin, free_port, fresh, migrate, say, stop_on_signals

from django_delayq.core.exceptions import DelayQError
from django_delayq.testing.embedded import EmbeddedServer

MESSAGES = 30_000
COUPONS = 2_000
LEFTOVERS = (
    "db.sqlite3",
    "db.sqlite3-wal",
    "db.sqlite3-shm",
    "redis.url",
    "web.log",
    "redis",
    "lake",
)
#: The rows of the example were made just now: a real export leaves out what the database took in
#: the last minute.
COMMANDS = (
    ("export", "--settle", "0s"),
    ("stats",),
    ("forecast", "--drain-rate", "500"),
    ("audit", "--pause", "1s"),
)


def main() -> int:
    """Seed, run the jobs, and serve the pages. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--smoke", action="store_true", help="do not stay: exit 0 once every job has done its work"
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(__file__).parent.parent / ".delayq-pipeline",
        help="its files",
    )
    options = parser.parse_args()
    stop = stop_on_signals()
    try:
        with ExitStack() as stack:
            folder = stack.enter_context(fresh(options.dir.resolve(), LEFTOVERS))
            redis = stack.enter_context(EmbeddedServer(folder / "redis"))
            (folder / "redis.url").write_text(redis.url)
            os.environ |= {"DELAYQ_REDIS_URL": redis.url, "SHOP_DEMO_DIR": str(folder)}
            os.environ["DELAYQ_LAKE"] = str(folder / "lake")
            migrate()
            _remember()
            if not _jobs(stop):
                return 130 if stop.is_set() else 1
            return _smoke() if options.smoke else _stay(folder, stop, stack)
    except DelayQError as error:
        say(f"pipeline: {error}")
        return 1


def _remember() -> None:
    from shop.past import DAYS, remember

    remember(MESSAGES, COUPONS)
    say(
        f"pipeline: {MESSAGES:,} messages finished in the last {DAYS} days, and {COUPONS:,} "
        f"coupons wait\n"
    )


def _jobs(stop: threading.Event) -> bool:
    """Run each, with its report on our output; whether all are done."""
    for words in COMMANDS:
        command = ("delayq", "pipeline", *words)
        say(f"$ python manage.py {shlex.join(command)}")
        with Child("job", *command, patience=30) as job:
            while job.running and not stop.wait(0.05):
                pass
            if stop.is_set() or job.process.returncode:
                say(f"pipeline: {words[0]} ended with exit code {job.stop()}")
                return False
        say("")
    return True


def _smoke() -> int:
    from django.db.models import Sum

    from django_delayq.models import Forecast, TopicHour

    counted = TopicHour.objects.aggregate(total=Sum("messages"))["total"]
    waiting = [forecast.waiting for forecast in Forecast.objects.all()]
    # What finished in the hour that is not over yet is counted later.
    passed = MESSAGES * 0.97 < (counted or 0) <= MESSAGES and waiting == [COUPONS]
    say(
        f"pipeline: {'passed' if passed else 'failed'}: {counted or 0:,} messages counted, "
        f"{waiting} waiting"
    )
    return 0 if passed else 1


def _stay(folder: Path, stop: threading.Event, stack: ExitStack) -> int:
    from django.urls import reverse

    port = free_port(8000)
    arguments = ("runserver", "--noreload", "--skip-checks", f"127.0.0.1:{port}")
    web = stack.enter_context(Child("web server", *arguments, log=folder / "web.log", patience=3))
    create_admin()
    site = f"http://127.0.0.1:{port}"
    say(
        f"  statistics  {site}{reverse('admin:django_delayq_dashboard_statistics')}   user admin, "
        f"password admin"
    )
    say(f"  forecast    {site}{reverse('admin:django_delayq_dashboard_changelist')}")
    say(f"  lake        {folder / 'lake'}")
    say(f"  again       export DELAYQ_LAKE={folder / 'lake'} SHOP_DEMO_DIR={folder}")
    say("              python example_project/manage.py delayq pipeline audit")
    say("              (Ctrl-C ends everything)\n")
    while web.running and not stop.wait(0.1):
        pass
    return 0 if stop.is_set() else 1


if __name__ == "__main__":
    sys.exit(main())
