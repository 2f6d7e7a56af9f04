"""The lake: plain Parquet files, and commit files that say which of them count.

    LAKE/data/<lo>-<hi>.<attempt>/dt=YYYY-MM-DD/part-*.parquet    written by Spark, one directory per batch and attempt
    LAKE/commits/000000042.json                                   created exclusively: this is the commit

A batch is the rows of the archive with lo < id <= hi. Readers go by the commits and never by a listing of data/: what a
killed writer leaves there is not part of the lake. Pure Python, no Spark: whoever reads Parquet can read the lake.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from .errors import LakeConflict, LakeError

FORMAT = 1
_NAME = re.compile(r"(\d{9})\.json\Z")
_ATTEMPT = re.compile(r"\d+-\d+\.[0-9a-f]+\Z")


class LakeFile(msgspec.Struct, frozen=True):
    """One Parquet file."""

    path: str
    """Relative to the lake."""
    rows: int
    bytes: int
    dt: str
    """UTC date on which its messages finished."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit file says."""

    seq: int
    kind: Literal["append", "compact"]
    lo: int
    """append: rows with ids above it ..."""
    hi: int
    """... up to this one."""
    rows: int
    signature: str
    """Of the contents: see transforms.signature."""
    oldest: str = ""
    """When the first and the last of them finished (ISO 8601, UTC)."""
    newest: str = ""
    files: Sequence[LakeFile] = ()
    removes: Sequence[str] = ()
    """compact: paths of files that these replace."""
    at: float = 0.0
    """Seconds since 1970."""
    format: int = FORMAT


_decode = msgspec.json.Decoder(Commit).decode


class Lake:
    """A directory that all of the driver's and the executors' machines see."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._commits = self.root / "commits"
        self._data = self.root / "data"

    # Reading

    def commits(self) -> list[Commit]:
        """All commits in order. Raises LakeError for one that cannot be read, is missing, or contradicts its name."""
        commits = []
        for number, path in enumerate(self._commit_files(), start=1):
            commit = self._read(path)
            if commit.seq != number or path.name != f"{number:09d}.json":
                raise LakeError(f"{path} should be commit {number}: a commit file is missing or was renamed.")
            commits.append(commit)
        _check_ranges(commits)
        return commits

    def files(self, since: str = "", until: str = "") -> list[LakeFile]:
        """The files that count now; of these UTC dates (YYYY-MM-DD, both included) if they are given."""
        live: dict[str, LakeFile] = {}
        for commit in self.commits():
            for removed in commit.removes:
                live.pop(removed, None)
            live |= {file.path: file for file in commit.files}
        return [f for f in live.values() if (not since or f.dt >= since) and (not until or f.dt <= until)]

    def paths(self, since: str = "", until: str = "") -> list[str]:
        """The same as paths, for pandas, DuckDB, Polars or Spark. Raises LakeError when one is not there as it was."""
        return [str(self.check(file)) for file in self.files(since, until)]

    def check(self, file: LakeFile) -> Path:
        """The path of a file that is there with the size that its commit says. Raises LakeError."""
        path = self.root / file.path
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise LakeError(f"{path} is missing, but a commit names it.") from None
        if size != file.bytes:
            raise LakeError(f"{path} has {size:,} bytes, its commit says {file.bytes:,}.")
        return path

    @property
    def last_id(self) -> int:
        """Rows of the archive up to this id are in the lake."""
        return max((commit.hi for commit in self.commits() if commit.kind == "append"), default=0)

    # Writing

    def attempt(self, lo: int, hi: int) -> Path:
        """A directory for the files of one try to write (lo, hi]. Not made yet: Spark insists on doing that."""
        self._data.mkdir(parents=True, exist_ok=True)
        return self._data / f"{lo}-{hi}.{os.urandom(6).hex()}"

    def found_in(self, attempt: Path, rows_of: Iterable[tuple[Path, int]]) -> list[LakeFile]:
        """The files of an attempt, of each of which the rows are known."""
        return [
            LakeFile(str(path.relative_to(self.root)), rows, path.stat().st_size, path.parent.name.partition("=")[2])
            for path, rows in sorted(rows_of)
        ]

    def commit(self, commit: Commit) -> Commit:
        """Make the files count, all at once. Raises LakeConflict when somebody else has this number."""
        self._commits.mkdir(parents=True, exist_ok=True)
        commit = msgspec.structs.replace(commit, at=time.time())
        path = self._commits / f"{commit.seq:09d}.json"
        draft = self._commits / f".{path.name}.{os.urandom(6).hex()}"
        with draft.open("xb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(commit), indent=1))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # fails when it is there, and is never seen half written
        except FileExistsError:
            raise LakeConflict(f"{path} is there already: another export has committed.") from None
        finally:
            draft.unlink()
        _sync(self._commits)
        return commit

    def abandoned(self, older_than: float) -> Iterator[Path]:
        """Attempts that no commit names and that nothing was written to for so many seconds."""
        named = {(self.root / file.path).parts[len(self._data.parts)] for c in self.commits() for file in c.files}
        for path in sorted(self._data.iterdir()) if self._data.exists() else ():
            if path.name not in named and _ATTEMPT.match(path.name) and time.time() - _touched(path) > older_than:
                yield path

    def sweep(self, older_than: float) -> int:
        """Remove abandoned attempts, and drafts of commits. Returns how many."""
        paths = list(self.abandoned(older_than))
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
        for draft in self._commits.glob(".*.json.*"):
            with suppress(FileNotFoundError):
                if time.time() - draft.stat().st_mtime > older_than:
                    draft.unlink()
        return len(paths)

    def _commit_files(self) -> list[Path]:
        return sorted(p for p in self._commits.iterdir() if _NAME.match(p.name)) if self._commits.exists() else []

    def _read(self, path: Path) -> Commit:
        try:
            commit = _decode(path.read_bytes())
        except (OSError, msgspec.MsgspecError) as error:
            raise LakeError(f"{path} cannot be read as a commit: {error}") from error
        if commit.format != FORMAT:
            raise LakeError(f"{path} has format {commit.format}, this version reads {FORMAT}.")
        if sum(file.rows for file in commit.files) != commit.rows:
            raise LakeError(f"{path} says {commit.rows:,} rows, but its files add up to another number.")
        if any(not (self.root / file.path).resolve().is_relative_to(self.root.resolve()) for file in commit.files):
            raise LakeError(f"{path} names a file outside of the lake.")
        return commit


def _check_ranges(commits: Sequence[Commit]) -> None:
    """Batches follow one another without gap or overlap."""
    hi = 0
    for commit in commits:
        if commit.kind == "append":
            if commit.lo != hi:
                raise LakeError(f"Commit {commit.seq} begins at id {commit.lo}, the one before ended at {hi}.")
            hi = commit.hi


def _touched(path: Path) -> float:
    """When something was last written below it."""
    times = [path.stat().st_mtime]
    with suppress(FileNotFoundError):
        times += [found.stat().st_mtime for found in path.rglob("*")]
    return max(times)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
