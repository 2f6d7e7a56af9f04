"""Sphinx directives that make tables of the reference from the code: settings, options, commands
and system checks."""

from __future__ import annotations

import argparse
import ast
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from importlib import import_module
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from django_delayq import checks, management
from django_delayq.core import conf, signals
from django_delayq.tasks import options

#: The options that Django gives to every command.
OF_DJANGO = {action.dest for action in BaseCommand().create_parser("manage.py", "any")._actions}


class MarkdownTable(SphinxDirective):
    """Puts a table of Markdown in the page's place."""

    head: tuple[str, ...]

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The rows of the table."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """The parsed table."""
        return self.parsed(table(self.head, self.rows()))

    def parsed(self, lines: list[str]) -> list[nodes.Node]:
        """Nodes of lines of Markdown."""
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


class SettingsTable(MarkdownTable):
    """The entries of DELAYQ, or of one topic: name, default, range, meaning."""

    required_arguments = 1
    head = ("name", "default", "range", "meaning")

    def rows(self) -> Iterator[tuple[str, ...]]:
        cls = getattr(conf, self.arguments[0])
        meanings = docs_of_fields(cls)
        for field in fields(cls):
            name = field.name.upper() if cls is conf.Settings else field.name
            default = field.default if field.default is not MISSING else {}
            yield f"`{name}`", shown_default(default), shown_range(field.name), meanings[field.name]


class OptionsTable(MarkdownTable):
    """The options of @delayed_task or of using()."""

    required_arguments = 1
    head = ("option", "meaning")

    def rows(self) -> Iterator[tuple[str, ...]]:
        cls = getattr(options, self.arguments[0])
        return ((f"`{name}`", meaning) for name, meaning in docs_of_fields(cls).items())


class SignalsTable(MarkdownTable):
    """The signals, with the text under each."""

    head = ("signal", "meaning")

    def rows(self) -> Iterator[tuple[str, ...]]:
        lines = ast.parse(inspect.getsource(signals)).body
        for line, text in pairwise(lines):
            if isinstance(line, ast.Assign) and isinstance(text, ast.Expr):
                name = ast.unparse(line.targets[0])
                if isinstance(getattr(signals, name), signals.TopicSignal):
                    yield f"`{name}`", " ".join(ast.literal_eval(text.value).split())


class ChecksTable(MarkdownTable):
    """The system checks."""

    head = ("check", "level", "runs", "finds")

    def rows(self) -> Iterator[tuple[str, ...]]:
        for meanings, when in ((checks.ALWAYS, "always"), (checks.WITH_DEPLOY, "`--deploy`")):
            for name, meaning in meanings.items():
                level = "error" if name.startswith("E") else "warning"
                yield f"`delayq.{name}`", level, when, meaning


class Commands(MarkdownTable):
    """Every management command, and every verb of it, with its options."""

    def run(self) -> list[nodes.Node]:
        lines = []
        for folder, before in (("commands", ""), ("verbs", "delayq ")):
            for module in pkgutil.iter_modules([str(Path(management.__path__[0]) / folder)]):
                if module.name != "delayq":  # its verbs follow
                    where = import_module(f"{management.__name__}.{folder}.{module.name}")
                    name = before + module.name.replace("_", "-" if before else "_")
                    parser = where.Command().create_parser("manage.py", name)
                    lines += lines_of_parser(f"manage.py {name}", parser)
        return self.parsed(lines)


class HttpApi(MarkdownTable):
    """A section for each group of calls, and the fields of their bodies."""

    def run(self) -> list[nodes.Node]:
        # Not above: ninja wants settings.
        from django_delayq.integrations.api.operations_api import api

        schema = api.get_openapi_schema(path_prefix="")
        calls = [
            (operation["tags"][0], f"{method.upper()} {path}", operation)
            for path, operations in schema["paths"].items()
            for method, operation in operations.items()
        ]
        lines: list[str] = []
        order = ("send", "consume", "inspect", "operate")
        for tag in order:
            head, rows = ("call", "does", "body"), []
            for its_tag, call, operation in calls:
                if its_tag == tag:
                    text = " ".join(operation.get("description", "").split())
                    rows.append((f"`{call}`", text, self._fields(operation, schema)))
            lines += [f"## {tag}", "", *table(head, iter(rows)), ""]
        return self.parsed(lines)

    def _fields(self, operation: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
        """The names of the fields; those that have to be there in bold."""
        content = operation.get("requestBody", {}).get("content", {})
        (body,) = [part["schema"] for part in content.values()] or [{}]
        if "$ref" in body:
            body = schema["components"]["schemas"][body["$ref"].rpartition("/")[2]]
        body = body.get("items", body)
        needed = body.get("required", ())
        return ", ".join(
            f"**{name}**" if name in needed else name for name in body.get("properties", {})
        )


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> list[str]:
    """A table of Markdown, as lines."""
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines]


def docs_of_fields(cls: type) -> dict[str, str]:
    """The text under each field of a class and of the classes that it names as its bases."""
    found: dict[str, str] = {}
    (tree,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(tree, ast.ClassDef)
    for base in tree.bases:
        if isinstance(base, ast.Name) and base.id != "TypedDict":
            found |= docs_of_fields(getattr(inspect.getmodule(cls), base.id))
    for field, text in pairwise(tree.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name) and isinstance(text.value, ast.Constant)
            found[field.target.id] = " ".join(text.value.value.split())
    return found


def shown_default(value: object) -> str:
    """A default as a settings file would have it."""
    if value in (None, ""):
        return ""
    if isinstance(value, str):
        return f'`"{value}"`'
    return f"`{value:g}`" if isinstance(value, float) else f"`{value!r}`"


def shown_range(name: str) -> str:
    """The values that a setting may have."""
    if name in conf._CHOICES:
        return ", ".join(f'`"{choice}"`' for choice in conf._CHOICES[name])
    low, high = conf._RANGES.get(name, (None, None))
    if low is None:
        return ""
    if name in conf._DURATIONS:
        return f"{shown_duration(low)} to {shown_duration(high)}"
    return f"{low:,} to {high:,}"


def shown_duration(seconds: float) -> str:
    """A duration in its largest unit."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds > length and seconds % length == 0:
            return f"{seconds // length:,} {unit}"
    return f"{seconds:g} s"


def lines_of_parser(title: str, parser: argparse.ArgumentParser, level: int = 2) -> list[str]:
    """Markdown of a parser and of its sub-parsers."""
    lines = [f"{'#' * level} `{title}`", "", *with_examples(parser.description or ""), ""]
    rows: list[tuple[str, ...]] = []
    verbs: Mapping[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            verbs = action.choices
        elif action.dest not in OF_DJANGO and action.help != argparse.SUPPRESS:
            rows.append(row_of_option(action))
    if rows:
        lines += [*table(("option", "meaning"), iter(rows)), ""]
    for verb, below in verbs.items():
        lines += lines_of_parser(f"{title} {verb}", below, min(level + 1, 4))
    return lines


def with_examples(description: str) -> list[str]:
    """The lines of a help text, its indented command lines fenced."""
    lines: list[str] = []
    for is_code, group in groupby(description.splitlines(), lambda line: line.startswith("  ")):
        text = [line.strip() for line in group]
        lines += ["```sh", *text, "```"] if is_code else text
    return lines


def row_of_option(action: argparse.Action) -> tuple[str, str]:
    """One option: its names and value, its help."""
    value = ""
    if action.nargs != 0:
        choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
        value = " " + str(action.metavar or choices or action.dest.upper())
    names = ", ".join(f"`{name}{value}`" for name in action.option_strings)
    words: dict[str, Any] = {**vars(action), "prog": "manage.py"}
    meaning = " ".join(((action.help or "") % words).split())
    return names or f"`{value.strip()}`", meaning


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("delayq-settings", SettingsTable)
    app.add_directive("delayq-options", OptionsTable)
    app.add_directive("delayq-signals", SignalsTable)
    app.add_directive("delayq-checks", ChecksTable)
    app.add_directive("delayq-commands", Commands)
    app.add_directive("delayq-http-api", HttpApi)
    return {"parallel_read_safe": True}
