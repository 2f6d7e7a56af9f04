"""Installs a peer into an environment of its own, once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.peers.catalogue import Peer

STAMP = "installed.txt"


class NotInstalledError(Exception):
    """The peer cannot be had here. The message says why in one line."""


def install(peer: Peer) -> None:
    """Make sure that it is there. Raises NotInstalledError."""
    wanted = "\n".join(peer.requirements)
    stamp = peer.folder / STAMP
    if not peer.requirements or (stamp.exists() and stamp.read_text() == wanted):
        return
    print(f"{peer.name}: installing into {peer.folder}", flush=True)
    peer.folder.mkdir(parents=True, exist_ok=True)
    (_npm if peer.node else _pip)(peer)
    stamp.write_text(wanted)


def _pip(peer: Peer) -> None:
    _run([sys.executable, "-m", "venv", str(peer.folder)], peer.folder)
    _run([str(peer.folder / "bin" / "pip"), "install", "--quiet", *peer.requirements], peer.folder)


def _npm(peer: Peer) -> None:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise NotInstalledError(f"{program} is missing")
    # A package.json, for npm would else install into a folder further up that has one.
    (peer.folder / "package.json").write_text(json.dumps({"private": True}))
    _run(["npm", "install", "--no-audit", "--no-fund", "--silent", *peer.requirements], peer.folder)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        raise NotInstalledError(f"{Path(command[0]).name} failed: {lines[-1]}")


def version(peer: Peer) -> str:
    """What is installed, for the report."""
    if peer.node:
        package = json.loads(
            (peer.folder / "node_modules" / peer.package / "package.json").read_text()
        )
        return f"{peer.package} {package['version']}"
    python = sys.executable if not peer.requirements else str(peer.folder / "bin" / "python")
    code = f"from importlib.metadata import version; print(version({peer.package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return f"{peer.package} {done.stdout.strip()}"
