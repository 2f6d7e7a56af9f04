"""The package shows what it is made of: few entries, a role for each module, one name for one
thing."""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "django_delayq"
MODULES = sorted(path for path in ROOT.rglob("*.py") if "migrations" not in path.parts)
PACKAGES = [path.parent for path in MODULES if path.name == "__init__.py"]
#: Packages whose modules are loaded by their names.
LOADED_BY_NAME = {"commands", "verbs"}
#: A message or a topic passes several layers, and the same thing is done to it on each: the page,
#: the operation with its permissions, the client, the outbox.
SAME_ON_EACH_LAYER = {
    "archive_again", "cancel", "edit", "find", "get", "move", "move_topic", "pause", "replay",
    "reschedule", "resume", "run", "run_now", "schedule", "send", "purge",
}  # fmt: skip
#: The one class of a management command, and the entry of a script.
CALLED_BY_NAME = {"Command", "main"}


@pytest.fixture(autouse=True)
def no_garbage() -> Iterator[None]:
    """What other tests have left may parse code when it is collected (a warning with its traceback
    does). CPython before 3.13 takes that for an error of the ast.parse() that goes on."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def name_of(path: Path) -> str:
    """The dotted name of a module."""
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def test_the_package_has_few_entries_and_few_loose_files() -> None:
    entries = [path for path in ROOT.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 24
    assert len([path for path in entries if path.suffix == ".py"]) <= 4


def test_each_module_says_its_role_first() -> None:
    silent = [
        name_of(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_each_package_has_a_table_of_contents(package: Path) -> None:
    if package.name in LOADED_BY_NAME:
        return
    module = import_module(name_of(package / "__init__.py"))
    for name in module.__all__:
        is_module = (package / f"{name}.py").exists() or (package / name / "__init__.py").exists()
        assert is_module or hasattr(module, name), f"{package.name} has no {name}"


def definitions() -> Iterator[tuple[str, str]]:
    """Each public module, class and function, and where it is defined.

    A module that is named like its package, or a function that is named like its module, is the
    main thing of it and not another one.
    """
    for package in PACKAGES:
        if package.name in LOADED_BY_NAME:
            continue
        module = import_module(name_of(package / "__init__.py"))
        for name in module.__all__:
            if callable(exported := getattr(module, name, None)):
                yield name, f"{exported.__module__}.{exported.__qualname__}"
        for path in package.glob("[!_]*.py"):
            where = name_of(path)
            yield (
                path.stem,
                where.removesuffix(f".{path.stem}") if path.stem == package.name else where,
            )
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield node.name, where if node.name == path.stem else f"{where}.{node.name}"


def test_no_name_stands_for_two_things() -> None:
    places = defaultdict(set)
    for name, place in definitions():
        if not name.startswith("_"):
            places[name].add(place)
    several = {name: where for name, where in places.items() if len(where) > 1}
    known = SAME_ON_EACH_LAYER | CALLED_BY_NAME
    assert {name: where for name, where in several.items() if name not in known} == {}


def test_no_private_class_has_the_name_of_another_one() -> None:
    places = defaultdict(set)
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].add(f"{name_of(path)}.{node.name}")
    several = {name: where for name, where in places.items() if len(where) > 1}
    assert several.keys() <= CALLED_BY_NAME


def test_the_map_of_the_readme_has_each_package() -> None:
    readme = (ROOT.parent / "README.md").read_text()
    packages = {path.name for path in PACKAGES if path.parent == ROOT} - {"templatetags"}
    assert packages == set(re.findall(r"^    (\w+)/ ", readme, re.MULTILINE))


def test_the_answers_for_contributors_name_files_that_exist() -> None:
    text = (ROOT.parent / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:django_delayq|tests)/[\w/.]+)`", text)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT.parent / path).exists()] == []
