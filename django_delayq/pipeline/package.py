"""Packs what spark-submit needs: `python -m django_delayq.pipeline.package FOLDER`."""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .. import __name__ as package

ROOT = Path(__file__).parent.parent


class Packed(NamedTuple):
    """For `spark-submit --py-files ARCHIVE SCRIPT JOB --params FILE`."""

    archive: Path
    script: Path


def pack(folder: Path) -> Packed:
    """Write the package as an archive for --py-files, and the script that runs a job. Replaces
    older ones."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = Packed(folder / "django_delayq.zip", folder / "delayq_job.py")
    with zipfile.ZipFile(packed.archive, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(ROOT.rglob("*")):
            if (
                path.is_file()
                and path.suffix in (".py", ".lua")
                and "__pycache__" not in path.parts
            ):
                archive.write(path, Path(package, path.relative_to(ROOT)))
    shutil.copyfile(ROOT / "pipeline" / "__main__.py", packed.script)
    return packed


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack into the folder that is named."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) != 1 or given[0].startswith("-"):
        sys.stderr.write("usage: python -m django_delayq.pipeline.package FOLDER\n")
        return 2
    sys.stdout.write("".join(f"{path}\n" for path in pack(Path(given[0]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
