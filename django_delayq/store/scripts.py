"""Loads the Lua scripts: one file per transition, with the shared parts that it needs before it."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

_KEYS = re.compile(
    r"^-- KEYS: .*\(shared/([a-z]+)\.lua\).*?(?: Shared: ([a-z, ]+))?\.$", re.MULTILINE
)


class Script(NamedTuple):
    """A script's text and its SHA1, by which Redis knows it."""

    name: str
    text: bytes
    sha: str


@lru_cache(maxsize=16)
def shared_text(name: str) -> str:
    """The text of `lua/shared/<name>.lua`."""
    return (files(__package__) / "lua" / "shared" / f"{name}.lua").read_text(encoding="utf-8")


@lru_cache(maxsize=64)
def load(name: str) -> Script:
    """The script of `lua/<name>.lua`, with the shared parts that its header names put before it:
    first what binds the keys.

    Only these: Redis makes their functions anew at every call, and all of them would cost a lone
    enqueue 9 us of 23.
    """
    own = (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    named = _KEYS.search(own)
    assert named, f"{name}.lua does not say in its header what its keys are"
    shared = [named[1], *(named[2].split(", ") if named[2] else [])]
    text = ("".join(map(shared_text, shared)) + own).encode()
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())
