"""`make demo`: an embedded server, the shop, its worker and its web server. Ctrl-C ends all of
them."""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from children import Child

from django_delayq.core.exceptions import DelayQError
from django_delayq.testing.embedded import EmbeddedServer

if TYPE_CHECKING:
    from shop.models import Order

STARTED = time.monotonic()
SMOKE_SECONDS = 15.0
#: The paid order is looked at this long after its deadline.
AFTERWARDS_SECONDS = 1.0
#: "On time" for a machine that is busy with other things; usually it is a few milliseconds.
LATE_LIMIT_MS = 1000
LEFTOVERS = (
    "db.sqlite3",
    "db.sqlite3-wal",
    "db.sqlite3-shm",
    "redis.url",
    "web.log",
    "mail",
    "redis",
)


def main() -> int:
    """Start everything, seed, report, and end in order. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--smoke", action="store_true", help="do not stay: exit 0 once the orders closed on time"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(__file__).parent.parent / ".delayq-demo", help="its files"
    )
    options = parser.parse_args()
    stop = stop_on_signals()
    try:
        with ExitStack() as stack:
            folder = stack.enter_context(fresh(options.dir.resolve(), LEFTOVERS))
            redis = stack.enter_context(EmbeddedServer(folder / "redis"))
            (folder / "redis.url").write_text(redis.url)
            os.environ |= {"DELAYQ_REDIS_URL": redis.url, "SHOP_DEMO_DIR": str(folder)}
            migrate()
            worker = stack.enter_context(
                Child("worker", "run_delayq", "--no-reload", "--log-format=pretty")
            )
            say(
                "demo: one webhook leads nowhere, on purpose: its message dies with a traceback, "
                "and is a dead letter"
            )
            report = Report(*_seeded())
            if options.smoke:
                return _smoke(report, worker, stop)
            return _stay(report, worker, folder, stop, stack)
    except DelayQError as error:
        say(f"demo: {error}")
        return 1


class Report:
    """Says what became of the seeded orders, each once."""

    def __init__(self, unpaid: list[Order], paid: Order) -> None:
        self.waiting = {order.pk for order in unpaid}
        self.paid = paid
        self.problems: list[str] = []
        self._paid_is_open = True

    @property
    def complete(self) -> bool:
        """Whether every order has been reported."""
        return not self.waiting and not self._paid_is_open

    def report_news(self) -> None:
        """Report what is new."""
        from shop.models import Order

        for order in (
            Order.objects.filter(pk__in=self.waiting)
            .exclude(state=Order.State.PENDING)
            .order_by("closed_at")
        ):
            self.waiting.remove(order.pk)
            late = order.overdue_ms
            say(
                f"demo: {order} closed {late} ms after its deadline, "
                f"{time.monotonic() - STARTED:.1f} s after the start"
            )
            if order.state != Order.State.CLOSED or late is None or not 0 <= late <= LATE_LIMIT_MS:
                self.problems.append(f"{order} is {order.state}, {late} ms after its deadline")
        if (
            self._paid_is_open
            and self.paid.due_at
            and time.time() > self.paid.due_at.timestamp() + AFTERWARDS_SECONDS
        ):
            self._paid_is_open = False
            self._look_at_paid()

    def _look_at_paid(self) -> None:
        self.paid.refresh_from_db()
        if self.paid.state == "paid" and self.paid.fired_at is None:
            say(
                f"demo: {self.paid} was paid in time: its message was cancelled and it is still "
                f"paid"
            )
        else:
            self.problems.append(
                f"{self.paid} was paid in time, but is {self.paid.state}, fired "
                f"{self.paid.fired_at}"
            )


def migrate() -> None:
    """Before the worker: without the tables of its archive it would not start."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def _seeded() -> tuple[list[Order], Order]:
    """Orders first: everything that takes longer is done while their time runs."""
    from shop.seed import seed

    return seed()


def _smoke(report: Report, worker: Child, stop: threading.Event) -> int:
    _check_pages(report)
    while (
        not report.complete
        and worker.running
        and time.monotonic() < STARTED + SMOKE_SECONDS
        and not stop.wait(0.05)
    ):
        report.report_news()
    if not report.complete:
        report.problems.append(
            f"orders {sorted(report.waiting) or 'paid'} were not settled in time"
        )
    if code := worker.stop():
        report.problems.append(f"the worker ended with exit code {code}")
    for problem in report.problems:
        say(f"demo: WRONG: {problem}")
    say(
        f"demo: {'failed' if report.problems else 'passed'} after {time.monotonic() - STARTED:.1f} "
        f"s"
    )
    return 1 if report.problems else 0


def _check_pages(report: Report) -> None:
    from django.test import Client

    browser = Client(headers={"host": "127.0.0.1"})
    for page in ("/", report.paid.get_absolute_url(), "/races/"):
        status = browser.get(page).status_code
        if status != 200:
            report.problems.append(f"{page} answered {status}")


def _stay(
    report: Report, worker: Child, folder: Path, stop: threading.Event, stack: ExitStack
) -> int:
    from django.urls import reverse

    port = free_port(8000)
    # --noreload: the reloader's own child would not end with us.
    arguments = ("runserver", "--noreload", "--skip-checks", f"127.0.0.1:{port}")
    web = stack.enter_context(Child("web server", *arguments, log=folder / "web.log", patience=3))
    create_admin()
    say(f"\n  shop    http://127.0.0.1:{port}/\n  race    http://127.0.0.1:{port}/races/")
    say(f"  queue   http://127.0.0.1:{port}{reverse('admin:django_delayq_dashboard_changelist')}")
    say("          user admin, password admin; one message has died: see Dead letters")
    say(f"  files   {folder}   (Ctrl-C ends everything)\n")
    while not stop.wait(0.1):
        report.report_news()
        for child in (worker, web):
            if not child.running:
                say(
                    f"demo: the {child.name} ended with exit code {child.process.returncode}; see "
                    f"above or {folder}"
                )
                return 1
    say("demo: stopping the web server, the worker and Redis")
    return 0


def create_admin() -> None:
    """A user for the pages: admin, admin."""
    from django.contrib.auth.models import User

    User.objects.create_superuser("admin", "", "admin")


def free_port(wanted: int) -> int:
    """The wanted port, or any that is free."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise DelayQError("No port is free on 127.0.0.1.")


@contextmanager
def fresh(folder: Path, leftovers: Sequence[str]) -> Iterator[Path]:
    """The folder without what an earlier demo left, and no other demo in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DelayQError(
                f"Another demo runs in {folder}: stop it, or choose another --dir."
            ) from None
        for name in leftovers:
            shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink(
                missing_ok=True
            )
        try:
            yield folder
        finally:
            (folder / "redis.url").unlink(missing_ok=True)


def stop_on_signals() -> threading.Event:
    """An event that is set by the first signal. The second ends this process at once, and the
    kernel its children."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)
    return stop


def say(line: str) -> None:
    """Print it now."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
