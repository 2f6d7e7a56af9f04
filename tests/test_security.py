"""The rows of docs/explanation/security.md: each names tests that exist, and those that belong to no
package are here."""

from __future__ import annotations

import ast
import pickle
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from django_delayq import delayed_task, topic_stats
from django_delayq.checks import check_lua_engine
from django_delayq.core import exceptions
from django_delayq.core.conf import parse_settings
from django_delayq.core.message import (
    MAX_BODY,
    MAX_DEPTH,
    PACKED,
    Body,
    check_json,
    decode_body,
    encode_body,
)
from django_delayq.core.present import on_one_line
from django_delayq.models import ArchivedMessage
from django_delayq.store import scripts
from django_delayq.store.connection import open_client
from django_delayq.store.inspection import ServerReport
from django_delayq.store.store import RedisStore
from django_delayq.tasks import registry
from django_delayq.tasks.arguments import read_json
from tests.app.tasks import noop, record
from tests.hands import DEFAULT, Hands
from tests.servers import Server
from tests.store import factories
from tests.test_readme import ROOT

PACKAGE = ROOT / "django_delayq"
SOURCES = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
PAGE = (ROOT / "docs/explanation/security.md").read_text()


# The page


def test_the_page_has_every_row_once() -> None:
    assert re.findall(r"^\| (S\d\d) \|", PAGE, re.MULTILINE) == [f"S{n:02}" for n in range(1, 27)]


def test_each_test_that_the_page_names_exists() -> None:
    names = re.findall(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`", PAGE)
    assert len(names) > 30
    for path, name in names:
        text = (ROOT / path).read_text()
        assert not name or f"def {name}(" in text, (path, name)


# What a message carries (S01 to S05)

_heard: list[str] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _heard is not None and event in (
        "import",
        "exec",
        "compile",
        "os.system",
        "pickle.find_class",
    ):
        _heard.append(f"{event} {arguments!r:.80}")


sys.addaudithook(_hook)


@contextmanager
def nothing_runs() -> Iterator[None]:
    """Fails when something is imported, compiled or run meanwhile."""
    global _heard
    _heard = []
    try:
        yield
        assert _heard == []
    finally:
        _heard = None


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return eval, ("__import__('os').system('true')",)


HOSTILE_BODIES = [
    pickle.dumps(Evil()),
    pickle.dumps(Evil(), protocol=0),
    b"gASVIAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAR0cnVllIWUUpQu",
    b"cos\nsystem\n(S'true'\ntR.",
    b"!!python/object/apply:os.system ['true']",
    b'{"args": [], "kwargs": {}, "__class__": "os.system"}' + b"\0",
    b"[" * 100_000,
]


@pytest.mark.parametrize("body", HOSTILE_BODIES, ids=range(len(HOSTILE_BODIES)))
@pytest.mark.parametrize("flags", [0, PACKED])
def test_hostile_bodies_run_no_code(body: bytes, flags: int) -> None:
    raw = zlib.compress(body) if flags else body
    with nothing_runs(), pytest.raises(exceptions.UndecodableMessage):
        decode_body(flags, raw, b"")


def test_the_package_names_no_way_to_run_data() -> None:
    """No unpickling, no YAML, no eval: also not in a job of the pipeline."""
    ways = re.compile(
        r"^\s*(?:import|from) (?:pickle|marshal|shelve|yaml|dill|cloudpickle)\b"
        r"|(?<![\w.])(?:eval|exec)\(|pickle\.loads?\(",
        re.MULTILINE,
    )
    found = {path.name: ways.findall(text) for path, text in SOURCES.items()}
    assert {name: ways for name, ways in found.items() if ways} == {}


HOSTILE_NAMES = [
    "os.system",
    "../../etc/passwd",
    "__import__",
    "оs.system",
    "x" * 10_000,
    "a b\r\nc",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
@pytest.mark.django_db(transaction=True)
def test_hostile_task_names_import_nothing(hands: Hands, name: str) -> None:
    hands.store.enqueue(DEFAULT, {factories.CODE: name}, [factories.outgoing()])
    noop.using(delay=0).enqueue()
    leases = hands.claim(DEFAULT)
    with nothing_runs():
        assert registry.by_name.get(name) is None
    hands.run(*leases)
    assert topic_stats("default").delayed == 1  # put off: another version may know it
    assert hands.archive()[-1].task == noop.name


@pytest.mark.django_db(transaction=True)
def test_an_error_is_text_of_bounded_length(hands: Hands, declared: dict[str, Any]) -> None:
    def failing() -> None:
        variable = "of-the-frame"  # noqa: F841 - no trace of it may be left
        raise ValueError("x" * 100_000)

    task = delayed_task(name="tests.failing", max_attempts=1)(failing)
    task.using(delay=0).enqueue()
    hands.work()
    row: ArchivedMessage = hands.archive()[-1]
    assert isinstance(row.error_message, str)
    assert len(row.error_message) <= 2_000
    assert len(row.traceback) <= 16_000
    assert "of-the-frame" not in row.error_message


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


LIMITS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "bytes of arguments": (
        lambda: encode_body(Body(["x" * 87]), 100),
        lambda: encode_body(Body(["x" * 88]), 100),
    ),
    "depth": (lambda: check_json(nested(MAX_DEPTH + 1)), lambda: check_json(nested(MAX_DEPTH + 2))),
    "topic": (
        lambda: parse_settings({"TOPICS": {"x" * 64: {}}}),
        lambda: parse_settings({"TOPICS": {"x" * 65: {}}}),
    ),
    "key": (lambda: record.using(key="x" * 256), lambda: record.using(key="x" * 257)),
    "delay": (
        lambda: record.using(delay=timedelta(days=3660)),
        lambda: record.using(delay=timedelta(days=3661)),
    ),
    "attempts": (lambda: record.using(max_attempts=1000), lambda: record.using(max_attempts=1001)),
}


@pytest.mark.parametrize("what", LIMITS)
def test_the_last_value_passes_and_the_next_is_refused(what: str) -> None:
    last, first_refused = LIMITS[what]
    last()
    with pytest.raises(exceptions.DelayQError):
        first_refused()


@pytest.mark.parametrize(
    "text",
    ["NaN", "Infinity", '{"a": 1, "a": 2}', "[" * 100_000, "9" * 5_000, '{"a": NaN}', "'x'"],
    ids=lambda text: text[:12],
)
def test_what_is_no_plain_json_is_refused(text: str) -> None:
    with pytest.raises(exceptions.InvalidArguments):
        read_json(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, {"a"}, b"x", object()])
def test_what_would_not_come_back_is_refused(value: Any) -> None:
    with pytest.raises(exceptions.InvalidMessage):
        check_json([value])


def test_a_number_beyond_all_bounds_is_refused_at_the_door() -> None:
    with pytest.raises(exceptions.InvalidMessage):
        check_json(read_json("[1e999]"))


# Names, statements and lines (S06 to S08)

HOSTILE_TOPICS = [
    "a}b{",
    "x:unacked",
    "*",
    "a?",
    "[a]",
    "\r\nFLUSHALL",
    "a b",
    "a\0b",
    "",
    "ä",
    "x" * 65,
]


@pytest.mark.parametrize("name", HOSTILE_TOPICS)
def test_a_name_that_would_be_another_key_is_refused(name: str) -> None:
    with pytest.raises(exceptions.ConfigurationError):
        parse_settings({"TOPICS": {name: {}}})
    with pytest.raises(exceptions.ConfigurationError):
        parse_settings({"PREFIX": name})
    with pytest.raises(exceptions.DelayQError):
        record.using(topic=name).enqueue("x")


#: What may stand in the text of a statement: names that are quoted, and tables of ours.
NAMES_IN_SQL = {
    "quote(role)",
    "quote(database.table)",
    "columns",
    "where",
    "int(patience_of(database) * 1000)",
}
#: Where the archive is cut into months: tables, columns, constraints and rights as the catalogue of
#: PostgreSQL gives them, quoted, and numbers and names of ours.
NAMES_OF_MONTHS = {
    *("table", "parent", "default", "history", "month.table", "sequence", "columns", "to", "right"),
    *("name", "check", "wanted", "option", "kind", "old", "new", "quote(name)"),
    *("_INDEX", "LOCK_MS", "OLD_LOCK_MS", "_check_of(boundary)"),
    *("quote(f'{name[:_ROOM]", "cursor.db.ops.quote_name(owner)"),
}


def test_no_statement_is_built_from_values() -> None:
    """Scripts are files. SQL of our own has places for values; what is put into it is names of our
    tables and numbers of ours."""
    for path, text in SOURCES.items():
        assert not re.search(r"\.extra\(|\.raw\(f?[\"']", text), path
        assert not re.search(r"(?i)execute_command\(\s*f?[\"']EVAL[\"' ], *f?[\"']", text), path
        assert not re.search(r"\.eval\(", text), path
        for placed in re.findall(r"cursor\.execute\(\s*f[\"'][^\n]*", text):
            names = (
                NAMES_OF_MONTHS if path.name in ("months.py", "partitioning.py") else NAMES_IN_SQL
            )
            assert set(re.findall(r"\{(.*?)\}", placed)) <= names, (path, placed)
    files = [path.stem for path in (PACKAGE / "store/lua").glob("*.lua")]
    assert len({scripts.load(name).sha for name in files}) == len(files) > 20


@pytest.mark.parametrize("text", ["a\r\nERROR fake", "\x1b[2J", "a\u2028b", "\u202eevil", "\0"])
def test_a_log_line_stays_one_line(text: str) -> None:
    shown = on_one_line(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) == 1


# Redis (S20, S22, S24)


@pytest.mark.parametrize(
    ("name", "version", "mended"),
    [
        ("Redis", (6, 2, 19), "6.2.20"),
        ("Redis", (6, 2, 20), ""),
        ("Redis", (7, 0, 15), "7.2.11"),
        ("Redis", (7, 2, 10), "7.2.11"),
        ("Redis", (7, 2, 11), ""),
        ("Redis", (7, 4, 5), "7.4.6"),
        ("Redis", (7, 4, 6), ""),
        ("Redis", (8, 2, 1), "8.2.2"),
        ("Redis", (8, 2, 2), ""),
        ("Redis", (8, 4, 0), ""),
        ("Valkey", (8, 1, 3), "8.1.4"),
        ("Valkey", (8, 1, 4), ""),
        ("Valkey", (9, 0, 0), ""),
    ],
)
def test_a_server_with_known_holes_is_a_warning(
    name: str, version: tuple[int, ...], mended: str
) -> None:
    shown = f"{name} {'.'.join(map(str, version))}"
    report = ServerReport(shown, version, "noeviction", 0, True, "everysec", 0.0)
    found = check_lua_engine([report])
    assert [message.id for message in found] == (["delayq.W010"] if mended else [])
    if mended:
        assert mended in found[0].msg
        assert "distribution" in str(found[0].hint)


def test_projects_on_one_redis_do_not_meet(delayq: RedisStore, server: Server, prefix: str) -> None:
    noop.using(delay=60).enqueue()
    settings = parse_settings({"REDIS": server.url, "PREFIX": f"{prefix}-other"})
    other = RedisStore(open_client(settings), settings)
    factories.enqueue(other, when="+9000")
    other.topics.pause("default", "{}")
    other.purge(DEFAULT)
    other.purge(factories.PARTITION)
    assert (topic_stats("default").delayed, topic_stats("default").paused) == (1, None)
    other.close()


def test_nothing_asks_redis_for_everything() -> None:
    texts = {path: path.read_text() for path in (PACKAGE / "store").rglob("*.lua")}
    for path, text in {**SOURCES, **texts}.items():
        # moving/ carries a whole store over: it looks through the new one, and empties it.
        if "moving" not in path.parts:
            assert not re.search(r"['\"](KEYS|SCAN|FLUSHDB|FLUSHALL|MONITOR)['\"]", text), path
        assert not re.search(r"(?i)'ZRANGE', \w+, 0, -1\)", text), path


def test_no_job_sends_code_that_a_row_could_bring() -> None:
    """Spark would pickle it: only the functions that the pipeline itself declares are sent."""
    jobs = [text for path, text in SOURCES.items() if "pipeline" in path.parts]
    assert jobs
    assert not any(re.search(r"\.rdd\b|mapPartitions|pickle\.", text) for text in jobs)


def test_the_sources_were_found() -> None:
    assert len(SOURCES) > 150
    assert Path(PACKAGE / "core/message.py") in SOURCES
    assert MAX_BODY == 1024 * 1024


# The supply chain (S25)

PROJECT = (ROOT / "pyproject.toml").read_text()
CORE = {"django", "redis", "django-redis", "msgspec", "cronsim"}
#: Django, django-ninja and openlineage-python bring the first four, redis[hiredis] the next; the
#: project has the driver of its database.
COME_ALONG = {
    "asgiref", "pydantic", "typing_extensions", "attr", "hiredis", "psycopg", "MySQLdb", "pymysql",
}  # fmt: skip


def requirements(start: str, end: str) -> list[str]:
    """Those that a part of pyproject.toml has."""
    part = PROJECT.partition(start)[2].partition(end)[0]
    return [
        text for text in re.findall(r'"([^"]+)"', part) if not text.startswith("django-delayq[")
    ]


def names(of: Iterable[str]) -> set[str]:
    return {re.split(r"[^\w.-]", text)[0].lower().replace("_", "-") for text in of}


def test_the_core_needs_five_packages() -> None:
    assert names(requirements("\ndependencies = [", "\n]")) == CORE


def test_no_requirement_comes_from_elsewhere_than_the_index() -> None:
    wanted = requirements("\ndependencies = [", "\n]")
    wanted += requirements("[project.optional-dependencies]", "\n[tool.")
    assert len(wanted) > 40
    assert [text for text in wanted if "@" in text or "/" in text] == []


def test_the_package_imports_nothing_that_is_not_declared() -> None:
    declared = CORE | names(requirements("[project.optional-dependencies]", "\ndocs = ["))
    known, undeclared = packages_distributions(), set[str]()
    for text in SOURCES.values():
        for node in ast.walk(ast.parse(text)):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found = [node.module]
            for top in {name.split(".")[0] for name in found} - sys.stdlib_module_names:
                if not names(known.get(top, [top])) & (declared | {"django-delayq"}):
                    undeclared.add(top)
    assert undeclared <= COME_ALONG
