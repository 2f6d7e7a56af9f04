"""An environment for each pair of Python and Django."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / ".matrix"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
#: Versions of Django, and the oldest Python of each.
DJANGOS = {"5.2": "3.10", "6.0": "3.12", "6.1": "3.12"}
#: All extras whose tests run here. The backport of Django's tasks is for Django 5.2 alone.
EXTRAS = "embedded,api,celery,encryption,kafka,opentelemetry,prometheus,rabbitmq,sentry"
TOOLS = (
    "pytest", "pytest-django", "pytest-timeout", "hypothesis", "factory-boy", "psutil", "pydantic>=2.10,<3",
    "gunicorn>=23", "opentelemetry-sdk>=1.27,<2", "pyyaml>=6",
)  # fmt: skip
#: Where versions differ: Django's tasks, what closures and signatures say of functions, threads and
#: loops.
TESTS = (
    "tests/integrations", "tests/client/test_waiting.py",
    "tests/tasks", "tests/worker/test_executor.py", "tests/core/test_message.py",
)  # fmt: skip


class Pair(NamedTuple):
    """One environment."""

    python: Path
    version: str
    django: str

    @property
    def name(self) -> str:
        """Also that of its folder."""
        return f"python{self.version}-django{self.django}"

    @property
    def packages(self) -> Sequence[str]:
        """What it has beside the product's own requirements."""
        backport = [] if _numbers(self.django) >= (6,) else ["django-tasks>=0.12,<1"]
        return [f"django=={self.django}.*", *TOOLS, *backport]

    def run(self, arguments: Sequence[str]) -> int:
        """Make the environment where it is missing, and run the tests in it. Returns pytest's
        code."""
        folder = FOLDER / self.name
        python = folder / "bin" / "python"
        ready, wanted = folder / "ready", "\n".join((EXTRAS, *self.packages))
        if not ready.exists() or ready.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([self.python, "-m", "venv", folder], check=True)
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--editable", f"{ROOT}[{EXTRAS}]", *self.packages], check=True)
            ready.write_text(wanted)
        command = [python, "-m", "pytest", "-q", "-m", "not long", *TESTS, *arguments]
        # It reads the docs with Sphinx, which has nothing to do with versions.
        command.append("--ignore=tests/integrations/api/test_how_to.py")
        return subprocess.run(command, cwd=ROOT, check=False).returncode


def interpreters() -> Iterator[tuple[str, Path]]:
    """Each version of PYTHONS that is on the path or among pyenv's, once."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in PYTHONS:
        named = shutil.which(f"python{version}")
        found = [Path(named)] if named else []
        found += sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
        for python in found:
            if _version_of(python) == version:
                yield version, python
                break


def pairs() -> list[Pair]:
    """Those that this machine can have."""
    return [
        Pair(python, version, django)
        for version, python in interpreters()
        for django, oldest in DJANGOS.items()
        if _numbers(version) >= _numbers(oldest)
    ]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _version_of(python: Path) -> str:
    """Empty for a shim of pyenv that leads nowhere."""
    code = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()
