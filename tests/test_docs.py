"""The examples of docs/ run."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_type_hints
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import msgspec
import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.dispatch import Signal
from django.utils import timezone, translation

import django_delayq
from django_delayq import checks
from django_delayq.core import signals
from django_delayq.core.conf import Settings, TopicSettings
from django_delayq.core.exceptions import InvalidArguments
from django_delayq.core.times import When
from django_delayq.integrations import tasks_api
from django_delayq.models import OutboxMessage
from django_delayq.outbox.ticker import Ticker
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from django_delayq.tasks import registry
from django_delayq.tasks.options import BatchOptions, CallOptions, Options, TaskOptions
from django_delayq.tasks.task import Definition
from tests import databases
from tests.hands import Hands
from tests.servers import require_embedded
from tests.store.test_scripts import ACL
from tests.test_readme import ROOT, blocks

sys.path.append(str(ROOT / "docs/_ext"))
from reference_from_code import docs_of_fields

PAGES = sorted(page for page in ROOT.joinpath("docs").rglob("*.md") if "_build" not in page.parts)


def docs(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_each_system_check_has_an_id_of_its_own_and_a_meaning() -> None:
    files = ("checks.py", "integrations/django_tasks.py")
    texts = [(ROOT / "django_delayq" / name).read_text() for name in files]
    used = re.findall(r'"delayq\.([EW]\d+)"', "".join(texts))
    assert len(used) > 10
    assert sorted(used) == sorted({*checks.ALWAYS, *checks.WITH_DEPLOY})


def test_the_reference_has_each_public_name() -> None:
    assert set(django_delayq.__all__) <= set(
        re.findall(r":: django_delayq\.(\w+)(?:\(\))?$", docs("reference/api.md"), re.MULTILINE)
    )


def test_each_setting_option_and_signal_has_a_text_for_the_reference() -> None:
    for cls in (Settings, TopicSettings, TaskOptions, BatchOptions, CallOptions):
        names = (
            {field.name for field in fields(cls)} if is_dataclass(cls) else set(get_type_hints(cls))
        )
        assert docs_of_fields(cls).keys() == names
    source = (ROOT / "django_delayq/core/signals.py").read_text()
    documented = re.findall(r'^(\w+) = TopicSignal\(\)\n"""', source, re.MULTILINE)
    assert documented == [
        name for name, value in vars(signals).items() if isinstance(value, Signal)
    ]


def test_the_rights_of_a_redis_user_are_those_that_the_tests_give_it() -> None:
    text = docs("how-to/redis-user.md").partition("\nAdd ")[0]
    assert sorted(re.findall(r"\+[a-z|]+", text)) == sorted(ACL)


@pytest.mark.long
def test_the_tests_of_the_page_about_testing_pass(tmp_path: Path) -> None:
    require_embedded()
    for code in blocks(docs("how-to/test.md")):
        tmp_path.joinpath(code.partition("\n")[0].removeprefix("# ")).write_text(code)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "pytest_delayq",
        "--ds=tests.settings",
        "-c",
        os.devnull,
    ]
    command += [f"--rootdir={tmp_path}", str(tmp_path)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "example_project")])
    }
    environment.pop("DELAYQ_TEST_REDIS", None)
    environment.pop(databases.VARIABLE, None)  # it would take, and drop, the database of this test
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "9 passed" in done.stdout, done.stdout + done.stderr


@pytest.fixture
def repeating(nothing_recurs: dict[str, Any]) -> dict[str, Any]:
    """The tasks of docs/how-to/repeat.md, declared."""
    (code,) = blocks(docs("how-to/repeat.md"))
    module: dict[str, Any] = {"__name__": "recipe"}
    days: list[str] = []
    module["days"] = days
    exec(code.replace("    ...\n", "    days.append(day)\n"), module)
    return {"days": days, "report": registry.by_name["recipe.report"]}


def test_the_task_that_comes_again_reports_the_day_before_its_tick(
    hands: Hands, repeating: dict[str, Any], settings: Any
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    ticker, three = Ticker(hands.store), datetime(2026, 3, 30, 3, tzinfo=ZoneInfo("Europe/Berlin"))
    ticker.write_ticks(int(three.timestamp() * 1000) - 12_000)
    ticker.write_ticks(int(three.timestamp() * 1000) - 4_000)
    assert set(OutboxMessage.objects.values_list("task", flat=True)) == {
        "recipe.fetch_rates",
        "recipe.report",
    }
    hands.relay()
    hands.work(Partition("reports", 0))
    repeating["report"].enqueue("2026-03-01")
    hands.work(Partition("reports", 0))
    assert repeating["days"] == ["2026-03-29", "2026-03-01"]


@pytest.mark.parametrize("name", ["retry-a-webhook", "debounce"])
def test_the_code_of_a_guide_can_be_imported(name: str, declared: dict[str, Any]) -> None:
    for block in blocks(docs(f"how-to/{name}.md")):
        exec(block, {"__name__": "guide"})


@pytest.fixture
def declarations(declared: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that the code of docs/how-to/declare-tasks.md makes."""
    module = ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)
    imports = """
import functools
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from uuid import UUID, uuid4

from django.db.models import TextChoices
from django_delayq import delayed_task
"""
    for block in (imports, *blocks(docs("how-to/declare-tasks.md"))):
        exec(compile(block, "guide", "exec", dont_inherit=True), vars(module))
    return module


def test_the_tasks_of_the_page_about_declarations_do_what_it_says(
    hands: Hands, declarations: Any
) -> None:
    declarations.order_paid()
    (message,) = django_delayq.list_messages("default").messages
    assert message.args[1][0]["price"] == "9.90"
    assert message.args[2:] == ["2026-12-01", "mail"]
    assert hands.work() == 1
    assert [row.state for row in hands.archive()] == ["acked"]
    with pytest.raises(InvalidArguments) as caught:
        declarations.send_invoice.enqueue(uuid4(), [], "soon", "mail")
    error = str(caught.value).replace("guide.", "shop.tasks.").replace("datetime.date", "date")
    assert f"\n{error}\n" in docs("how-to/declare-tasks.md")

    declarations.order_placed(7)
    assert declarations.close_order.get(key="order:7").args == [7]
    declarations.order_changed(7)
    declarations.order_changed(7)
    assert declarations.close_order.get(key="order:7") is None
    assert declarations.send_coupon.enqueue(5, "").key is None
    assert declarations.send_coupon.enqueue(5, "spring").key == "spring:5"
    assert declarations.send_coupon.enqueue(5, "spring").outcome == "kept"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (UUID, UUID("0190a5f0-0000-7000-8000-000000000001")),
        (datetime, datetime(2026, 11, 20, 10, tzinfo=timezone.get_fixed_timezone(60))),
        (date, date(2026, 11, 20)),
        (clock_time, clock_time(9, 30)),
        (timedelta, timedelta(seconds=90)),
        (Decimal, Decimal("9.90")),
        (bytes, b"\0\xff"),
    ],
)
def test_the_table_of_types_has_the_json_that_is_written(kind: type, value: Any) -> None:
    def task(value: Any) -> None: ...

    task.__annotations__["value"] = kind
    ((written,), _) = Definition(task, "t", Options()).stored([value], {})
    (row,) = re.findall(
        rf"^\|.*`{kind.__name__}`.*\|(.*)\|.*\|$", docs("how-to/declare-tasks.md"), re.MULTILINE
    )
    assert f'`"{written}"`' in row


def test_the_code_of_the_page_about_results_does_what_it_says(
    hands: Hands, declared: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    declaring, waiting, awaiting = blocks(docs("how-to/results.md"))
    guide: dict[str, Any] = {"__name__": "guide"}
    exec(declaring, guide)
    guide["handle"] = guide["export_orders"].enqueue(2026)
    hands.work(Partition("exports", 0))
    exec(waiting, guide)
    assert guide["answer"] == {"file": "orders-2026.csv", "rows": 3}
    assert msgspec.json.decode(hands.archive()[0].result)["progress"] == [3, 3, "rows", 1]
    exec(awaiting, guide)
    # Not asyncio.run(): what is awaited would open a connection in a thread of its own, and keep it.
    assert async_to_sync(guide["download"])(guide["handle"]) == "orders-2026.csv"


def test_the_code_of_the_page_about_django_tasks_does_what_it_says(
    hands: Hands, declared: dict[str, Any], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "topics", set())
    monkeypatch.setattr(registry, "finders", [])
    page = docs("how-to/django-tasks.md").replace(
        "from django.tasks import", "from django_delayq.integrations.tasks_api import"
    )
    configuring, tasks, using, extras = blocks(page)
    namespace: dict[str, Any] = {}
    exec(configuring, namespace)
    settings.TASKS = namespace["TASKS"]
    module = ModuleType("guide_of_django_tasks")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(tasks, vars(module))
    vars(module)["user"] = SimpleNamespace(pk=7)
    exec(using, vars(module))
    result = vars(module)["result"]
    assert hands.work(Partition("emails", 0)) == 0
    hands.store.reschedule("emails", bytes.fromhex(result.id), When("1000000000000"))
    assert hands.work(Partition("emails", 0)) == 1
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", "welcome, user 7, attempt 1")
    if "kwargs" in inspect.signature(tasks_api.task).parameters:
        exec(extras, vars(module))


def test_the_guide_to_limits_says_what_holds(declared: dict[str, Any], delayq: RedisStore) -> None:
    from django_delayq.core.conf import parse_settings
    from django_delayq.store.keys import Partition
    from django_delayq.worker.claims import Claims

    module: dict[str, Any] = {"__name__": "guide"}
    for block in blocks(docs("how-to/limit-rates.md")):
        exec(block, module)
    topics = parse_settings(module["DELAYQ"]).topics
    assert (topics["mail"].rate, topics["push"].too_late) == ("600/m", 3600)
    module["send_mail"].enqueue_many([("anna@example.org", "Hello")] * 20)
    module["charge"].enqueue_many([(1, 100), (1, 200), (2, 300)])
    claims = Claims(delayq, delayq.client.settings)
    claimed = {
        topic: len(claims.claim(Partition(topic, 0), 100, bytes(16)).leases)
        for topic in ("mail", "payments")
    }
    assert claimed == {"mail": 6, "payments": 2}


def test_a_request_id_travels_as_the_page_about_middleware_says(
    hands: Hands, settings: Any, declared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, config = blocks(docs("how-to/middleware.md"))
    module = ModuleType("guide_queue")
    monkeypatch.setitem(sys.modules, "guide_queue", module)
    exec(queue, module.__dict__)
    namespace: dict[str, Any] = {}
    exec(config.replace("shop.queue", "guide_queue"), namespace)
    wanted = namespace["DELAYQ"]
    names = {name: wanted[name] for name in ("MIDDLEWARE", "ENQUEUE_HOOKS")}
    settings.DELAYQ = {**settings.DELAYQ, **names}
    found: list[tuple[str, str | None]] = []

    @django_delayq.delayed_task(name="guide.first")
    def first() -> None:
        second.enqueue()

    @django_delayq.delayed_task(name="guide.second")
    def second() -> None:
        found.append((module.request_id.get(), translation.get_language()))

    workers = Hands(hands.store)  # of a process with these settings
    token = module.request_id.set("r-7")
    with translation.override("de"):
        first.enqueue()
    module.request_id.reset(token)
    assert [workers.work(), workers.work()] == [1, 1]
    assert found == [("r-7", "de")]


def test_follow_up_messages_and_the_counter_that_joins_do_what_the_page_says(
    hands: Hands, declared: dict[str, Any]
) -> None:
    one_by_one, joined = blocks(docs("how-to/follow-up-messages.md"))
    guide: dict[str, Any] = {"__name__": "guide"}
    exec(one_by_one + joined, guide)
    guide["charge"].enqueue(7)
    guide["split"].enqueue("book", 3)
    assert hands.work() == 2
    hands.relay()
    (*parts,) = hands.claim()
    render = guide["render"].definition.code
    pages = [lease for lease in parts if lease.record[19:23] == render]
    assert (len(parts), len(pages)) == (4, 3)
    hands.run(*(lease for lease in parts if lease not in pages), *pages, pages[0])
    hands.relay()
    assert hands.work() == 1, "the end, once"
    done = [row.task for row in hands.archive()]
    assert sorted(set(done)) == [
        "guide.bind",
        "guide.charge",
        "guide.render",
        "guide.send_receipt",
        "guide.split",
    ]
    assert done.count("guide.bind") == 1


def test_the_guide_to_limits_of_time_and_memory_says_what_holds(
    declared: dict[str, Any], hands: Hands
) -> None:
    module: dict[str, Any] = {"__name__": "guide"}
    for block in blocks(docs("how-to/limit-time-and-memory.md")):
        exec(block, module)
    assert module["make_pdf"].options.memory_limit == 512 << 20
    handle = module["export_orders"].enqueue(["May", "June"])
    (lease,) = hands.claim()
    hands.run(lease)
    assert lease.report and lease.report.may_run_until > time.monotonic() + 590
    assert handle.wait(timeout=5) == 2
    pdf = module["make_pdf"].using(key="order:7").enqueue(7)
    hands.claim()
    module["stop_export"](7)
    assert pdf.get() is None


def test_the_code_that_erases_a_persons_data_does_what_the_page_says(
    hands: Hands, declared: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")

    @django_delayq.delayed_task(name="guide.greet")
    def greet(customer_id: int) -> None: ...

    greet.enqueue(42)
    hands.work()
    greet.enqueue(42)
    greet.enqueue(customer_id=43)
    (code,) = blocks(docs("how-to/erase-a-persons-data.md"))
    guide: dict[str, Any] = {"LAKE": str(tmp_path / "lake")}
    exec(code, guide)
    assert guide["forget"](42, "anna") == (True, {"queue": 1, "archive": 2})
    rows = [(row.state, "erased" in row.body) for row in hands.archive()]
    assert rows == [("acked", True), ("cancelled", True)]
    assert hands.work() == 1
    for line in re.findall(r"manage.py delayq (erase .*)", docs("how-to/erase-a-persons-data.md")):
        out = StringIO()
        call_command("delayq", *shlex.split(line), "--yes", stdout=out)
        assert "erased: nothing found" in out.getvalue()
