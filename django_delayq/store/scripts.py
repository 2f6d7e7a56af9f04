"""Loads the Lua scripts: one file per transition, the shared parts put before each."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple


class Script(NamedTuple):
    """A script's text and its SHA1, by which Redis knows it."""

    name: str
    text: bytes
    sha: str


@lru_cache(maxsize=1)
def shared_text() -> str:
    """The shared parts, in the order of their file names."""
    parts = sorted((files(__package__) / "lua" / "shared").iterdir(), key=lambda part: part.name)
    return "".join(part.read_text(encoding="utf-8") for part in parts if part.name.endswith(".lua"))


@lru_cache(maxsize=64)
def load(name: str) -> Script:
    """The script of `lua/<name>.lua`."""
    own = (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    text = (shared_text() + own).encode()
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


def names() -> list[str]:
    """All transitions that have a script."""
    lua = files(__package__) / "lua"
    return sorted(part.name[:-4] for part in lua.iterdir() if part.name.endswith(".lua"))
