"""The examples of docs/ run."""

from __future__ import annotations

import itertools
import os
import re
import signal as signal_numbers
import subprocess
import sys
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest
from django.dispatch import Signal
from django.utils import timezone, translation

import django_delayq
from django_delayq import checks
from django_delayq.core import signals
from django_delayq.core.conf import Settings, TopicSettings
from django_delayq.models import OutboxMessage
from django_delayq.tasks import registry
from django_delayq.tasks.options import CallOptions, TaskOptions
from tests.acceptance.harness import free_port
from tests.hands import Hands
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
    used = re.findall(r'"delayq\.([EW]\d+)"', (ROOT / "django_delayq/checks.py").read_text())
    assert len(used) > 10
    assert sorted(used) == sorted({*checks.ALWAYS, *checks.WITH_DEPLOY})


def test_the_reference_has_each_public_name() -> None:
    assert set(django_delayq.__all__) <= set(
        re.findall(r":: django_delayq\.(\w+)(?:\(\))?$", docs("reference/api.md"), re.MULTILINE)
    )


def test_each_setting_option_and_signal_has_a_text_for_the_reference() -> None:
    for cls in (Settings, TopicSettings, TaskOptions, CallOptions):
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


def test_the_tests_of_the_page_about_testing_pass(tmp_path: Path, binary: None) -> None:
    for name, code in zip(
        ("conftest.py", "test_orders.py"), blocks(docs("how-to/test.md")), strict=True
    ):
        assert code.startswith(f"# {name}\n")
        tmp_path.joinpath(name).write_text(code)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--ds=tests.settings",
        "-c",
        os.devnull,
    ]
    command += [f"--rootdir={tmp_path}", str(tmp_path)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "example_project")])
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.fixture
def binary() -> None:
    """The server that EmbeddedServer runs, or skip."""
    from django_delayq.core.exceptions import ConfigurationError
    from django_delayq.testing.embedded import find_binary
    from tests.servers import require

    try:
        find_binary()
    except ConfigurationError:
        require("valkey")


@pytest.fixture
def ticking(declared: dict[str, Any]) -> dict[str, Any]:
    """The recipe of docs/how-to/repeat.md, declared."""
    (recipe,) = [block for block in blocks(docs("how-to/repeat.md")) if "def tick" in block]
    module: dict[str, Any] = {"__name__": "recipe"}
    exec(recipe, module)
    return module


def test_the_recipe_of_a_task_that_comes_again_does(hands: Hands, ticking: dict[str, Any]) -> None:
    from django_delayq.store.keys import Partition

    assert {"recipe.tick", "recipe.report"} <= registry.by_name.keys()
    reports = Partition("reports", 0)
    tick = ticking["tick"]
    for _ in range(2):
        tick.using(key="daily").enqueue()  # a second start moves it
    for day in range(3):
        assert hands.work(reports) == 1, "the tick"
        assert hands.work(reports) == 1, "the report"
        waiting = tick.get(key="daily")
        assert (
            waiting is not None
            and 0 < (waiting.due_at - timezone.now()).total_seconds() < 2 * 86_400
        )
        hands.archive()
        hands.reconcile()
        assert OutboxMessage.objects.count() == 1, day
        tick.reschedule(key="daily", delay=0)
        hands.relay()
    assert {(row.task, row.state) for row in hands.archive()} == {
        ("recipe.tick", "acked"),
        ("recipe.report", "acked"),
    }


@pytest.fixture
def tutorial(tmp_path: Path, binary: None) -> Tutorial:
    return Tutorial(tmp_path)


class Tutorial:
    """A reader of docs/tutorial.md, who types what it says into a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.imports: list[str] = []
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DELAYQ", "DJANGO"))
        } | {"PYTHONPATH": str(ROOT)}
        self.steps = iter(blocks(docs("tutorial.md").replace("6399", str(free_port()))))

    def run(self, *command: str) -> str:
        """The output of a command that succeeds."""
        done = subprocess.run(
            [sys.executable, *command],
            check=False,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def write(self) -> None:
        """Add the next block to the file that its first line names."""
        name, _, code = next(self.steps).partition("\n")
        path = self.directory / name.removeprefix("# ").split(",")[0]
        path.write_text((path.read_text() if path.exists() else "") + "\n\n" + code)

    def shell(self, count: int) -> str:
        """The output of the next blocks in a shell that knows the imports of the earlier ones."""
        code = "\n".join(itertools.islice(self.steps, count))
        imports = "\n".join(self.imports)
        self.imports += re.findall(r"^from .*", code, re.MULTILINE)
        return self.run("manage.py", "shell", "-v", "0", "--command", f"{imports}\n{code}")


@pytest.mark.acceptance
def test_the_tutorial_does_what_it_says(tutorial: Tutorial) -> None:
    tutorial.run("-m", "django", "startproject", "tutorial", ".")
    tutorial.run("manage.py", "startapp", "shop")
    tutorial.write()
    (tutorial.directory / "shop/models.py").unlink()
    for _ in range(2):
        tutorial.write()
    tutorial.run("manage.py", "makemigrations", "shop")
    tutorial.run("manage.py", "migrate")
    worker = subprocess.Popen(
        [sys.executable, "manage.py", "run_delayq", "--embedded"],
        cwd=tutorial.directory,
        env=tutorial.environment | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_line(worker, "Ready")
        assert tutorial.shell(3).startswith("delayed")
        wait_for_line(worker, "close_unpaid_order")
        assert tutorial.shell(1) == "closed\n"
        assert tutorial.shell(1) == "None\n"
        tutorial.write()
        wait_for_line(worker, "Ready")
        tutorial.shell(1)
        wait_for_line(worker, "dead")
        time.sleep(1)
        assert tutorial.shell(1) == "shop.tasks.send_invoice 2 the mail server does not answer\n"
    finally:
        worker.send_signal(signal_numbers.SIGTERM)
        worker.communicate(timeout=30)


def wait_for_line(worker: subprocess.Popen[str], word: str) -> None:
    """Read the worker's output up to a line with this word."""
    assert worker.stdout is not None
    lines: list[str] = []
    for line in worker.stdout:
        lines.append(line)
        if word in line:
            return
    raise AssertionError(f"{word!r} is not in: {lines}")


@pytest.mark.parametrize("name", ["retry-a-webhook", "debounce"])
def test_the_code_of_a_guide_can_be_imported(name: str, declared: dict[str, Any]) -> None:
    for block in blocks(docs(f"how-to/{name}.md")):
        exec(block, {"__name__": "guide"})


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
