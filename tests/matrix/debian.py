"""Programs of other Debian releases, which are not installed: their packages and all that they need
are unpacked in a folder of their own, and started with the libraries there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.matrix.environments import FOLDER

KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

#: Starts a program with the libraries of its folder. PostgreSQL finds its files by its own name.
WRAPPER = """#!/bin/sh
exec {root}/usr/lib64/ld-linux-x86-64.so.2 --argv0 {program} \\
    --library-path {root}/usr/lib/x86_64-linux-gnu {program}.real "$@"
"""


class Unavailable(Exception):
    """This machine cannot have it."""


def unpacked(release: str, packages: Sequence[str], programs: Sequence[str]) -> Path:
    """The folder with the packages of that release in it; `programs`, paths in it, can be started.
    Kept in .matrix. Raises Unavailable."""
    folder = FOLDER / f"{release}-{packages[0]}"
    root = folder / "root"
    if (folder / "ready").exists():
        return root
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("lists/partial", "cache/archives/partial", "root"):
        (folder / part).mkdir(parents=True)
    (folder / "status").touch()  # nothing is installed there: apt fetches all that is needed
    (folder / "sources.list").write_text(
        f"deb [signed-by={KEYS} arch=amd64] {_mirror()} {release} main\n"
    )
    _apt(folder, "update")
    _apt(folder, "install", "--download-only", *packages)
    for archive in (folder / "cache/archives").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", archive, root], check=True)
    _merge(root)
    for name in programs:
        program = root / name
        program.rename(f"{program}.real")
        program.write_text(WRAPPER.format(root=root, program=program))
        program.chmod(0o755)
    shutil.rmtree(folder / "cache")
    (folder / "ready").touch()
    return root


def _mirror() -> str:
    """Where this machine's own packages come from."""
    if not shutil.which("apt-get"):
        raise Unavailable("it needs apt-get, as Debian has it")
    command = ["apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
    mirrors = [line.partition(" ")[2] for line in found if line.startswith("Debian http")]
    if not mirrors:
        raise Unavailable("it needs the packages of Debian")
    return mirrors[0]


def _apt(folder: Path, *words: str) -> None:
    options = {
        "Dir::State": folder,
        "Dir::State::status": folder / "status",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::parts": "-",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "APT::Architecture": "amd64",
    }
    given = [f"--option={name}={value}" for name, value in options.items()]
    done = subprocess.run(
        ["apt-get", "-qq", "-y", *given, *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Unavailable(f"apt-get {words[0]} failed: {done.stderr.strip()[-300:]}")


def _merge(root: Path) -> None:
    """Some packages still have files in /lib and not in /usr/lib."""
    for name in ("lib", "lib64", "bin", "sbin"):
        if (root / name).is_dir() and not (root / name).is_symlink():
            shutil.copytree(root / name, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
