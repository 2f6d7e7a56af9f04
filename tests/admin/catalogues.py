"""Reads catalogues of translations, and from the source what has to stand in them. Needs no gettext
tools."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from django.utils.translation import template

import django_delayq

SOURCE = Path(django_delayq.__file__).parent
LOCALES = ("de", "zh_Hans")


class Text(NamedTuple):
    """What identifies an entry."""

    text: str
    plural: str = ""
    context: str = ""


@dataclass
class Entry:
    """One entry of a .po file."""

    fields: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)

    @property
    def text(self) -> Text:
        return Text(
            self.fields["msgid"],
            self.fields.get("msgid_plural", ""),
            self.fields.get("msgctxt", ""),
        )

    @property
    def translations(self) -> list[str]:
        return [value for name, value in self.fields.items() if name.startswith("msgstr")]


def path_of(locale: str, suffix: str) -> Path:
    return SOURCE / "locale" / locale / "LC_MESSAGES" / f"django{suffix}"


def entries_of(locale: str) -> list[Entry]:
    """All of the .po file but its head, also those that are no longer used."""
    return [
        entry
        for entry in map(_entry, path_of(locale, ".po").read_text("utf-8").split("\n\n"))
        if entry.text.text
    ]


def _entry(paragraph: str) -> Entry:
    entry, name = Entry(), ""
    for line in paragraph.splitlines():
        if line.startswith("#,"):
            entry.flags |= set(line[2:].replace(" ", "").split(","))
        written = line.removeprefix("#~ ")
        if written.startswith("#"):
            continue
        if not written.startswith('"'):
            name, _, written = written.partition(" ")
            entry.fields[name] = ""
        entry.fields[name] += ast.literal_eval(written)
    return entry


# What is marked

#: How many texts a function takes, and whether a context comes first.
_FUNCTIONS = {
    "_": (1, False), "gettext": (1, False), "gettext_lazy": (1, False), "gettext_noop": (1, False),
    "ngettext": (2, False), "pgettext": (1, True), "npgettext": (2, True),
}  # fmt: skip
_STRING = r"""u?(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
_CALL = re.compile(rf"(?<!\w)(_|n?p?gettext)\(({_STRING}(?:\s*,\s*{_STRING})*)")


def marked() -> set[Text]:
    """What the modules and the templates have translated."""
    found: set[Text] = set()
    for module in SOURCE.rglob("*.py"):
        found.update(_in_module(module))
    for page in SOURCE.rglob("templates/**/*.html"):
        code = template.templatize(page.read_text("utf-8"), origin=str(page))
        found.update(
            _text(name, list(ast.literal_eval(f"({texts},)")))
            for name, texts in _CALL.findall(code)
        )
    return found


def _in_module(module: Path) -> Iterator[Text]:
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _FUNCTIONS
        ):
            texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
            if texts and isinstance(texts[0], str):
                yield _text(node.func.id, texts)


def _text(function: str, texts: list[str]) -> Text:
    count, has_context = _FUNCTIONS[function]
    context = texts.pop(0) if has_context else ""
    return Text(texts[0], texts[1] if count == 2 else "", context)


def other_names() -> list[str]:
    """Functions of Django that a module calls by names that makemessages does not know: it would
    miss their texts."""
    return [
        f"{module.name}: {alias.name} as {alias.asname}"
        for module in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "django.utils.translation"
        for alias in node.names
        if alias.asname not in (None, "_")
    ]


# What people read

_READ_ATTRIBUTES = {"aria-label", "title", "placeholder", "alt"}
#: What stands in these is the same in every language.
_CODE = {"code", "kbd", "script", "style"}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        said = {name: value or "" for name, value in attributes}
        self.found += [said[name] for name in sorted(said) if name in _READ_ATTRIBUTES]
        # Those with words for the script: data-rate="Finished/s".
        self.found += [
            said[name]
            for name in sorted(said)
            if name.startswith("data-") and name != "data-delayq-tab"
        ]

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, text: str) -> None:
        if not _CODE.intersection(self._open):
            self.found.append(" ".join(text.split()))


def read(html: str) -> list[str]:
    """What people read on a page, in parts: between tags, and in the attributes that are shown or
    read out."""
    reader = _Reader()
    reader.feed(html)
    return [text for text in reader.found if text]


_TAGS = re.compile(
    r"{% comment.*?endcomment %}|{#.*?#}|{% blocktranslate.*?endblocktranslate %}|{%.*?%}|{{.*?}}",
    re.DOTALL,
)


def unmarked(page: Path) -> list[str]:
    """Words of a template that are the same in every language."""
    html = re.sub(r"\sdata-[\w-]+", "", _TAGS.sub("", page.read_text("utf-8")))
    return [text for text in read(html) if re.search(r"[A-Za-z]{2}", text)]
