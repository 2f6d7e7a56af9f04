"""The lake: plain Parquet files, and commit files that say which of them count.

    LAKE/data/<lo>-<hi>.<attempt>/dt=YYYY-MM-DD/part-*.parquet
        written by executors, a directory per batch and attempt
    LAKE/commits/000000042.json
        created exclusively: this is the commit

A batch is the rows of the archive with lo < id <= hi. Readers go by the commits and never by a
listing of data/: files that a killed writer leaves there are not part of the lake. This module is
pure Python without Spark: any program that reads Parquet can read the lake.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ..job_errors import LakeConflict, LakeError

FORMAT = 1
Count = Annotated[int, msgspec.Meta(ge=0)]
_NAME = re.compile(r"(\d{9})\.json\Z")
_ATTEMPT = re.compile(r"\d+-\d+\.[0-9a-f]+\Z")


class LakeFile(msgspec.Struct, frozen=True):
    """One Parquet file."""

    path: str
    """Relative to the lake."""
    rows: Count
    bytes: Count
    dt: Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
    """UTC date on which its messages finished."""
    lowest: int = 0
    """Its smallest id; 0: not known."""
    highest: int = 0
    """Its biggest id; 0: not known."""
    signature: str = ""
    """Of its rows. The signatures of the files of a commit add up to that of the commit. Empty: not
    known."""

    def may_have(self, lo: int, hi: int) -> bool:
        """Whether it may have rows with lo < id <= hi: also when its ids are not known."""
        return self.lowest <= hi and (self.highest > lo or not self.highest)


class Digest(msgspec.Struct, frozen=True):
    """What rows hold: equal for equal rows, in any order and in any files."""

    rows: int = 0
    signature: int = 0
    """Sum of the hashes of the rows."""
    lowest: int = 0
    """Ids; 0 without rows."""
    highest: int = 0
    oldest: str = ""
    """When they finished (ISO 8601, UTC); empty without rows."""
    newest: str = ""

    def __add__(self, other: Digest) -> Digest:
        if not (self.rows and other.rows):
            return self if self.rows else other
        return Digest(
            self.rows + other.rows,
            self.signature + other.signature,
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
            min(self.oldest, other.oldest),
            max(self.newest, other.newest),
        )


class WrittenFiles(msgspec.Struct, frozen=True):
    """What the files of an attempt hold."""

    digest: Digest
    files: Sequence[LakeFile]
    hours: Sequence[str]
    """The hours in which the rows finished."""


Kind = Literal["append", "compact", "repair", "erase"]


class BatchSum(msgspec.Struct, frozen=True):
    """What one batch holds."""

    lo: int
    rows: Count
    """With lo < id <= hi; its files may hold other rows too."""
    signature: str
    """Of these rows."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit file says."""

    seq: int
    kind: Kind
    """append: a new batch. compact: the same rows in other files. repair: a batch that is read from
    SQL anew. erase: rows of a person are redacted or gone."""
    lo: int
    """append and repair: its rows have ids above this one."""
    hi: int
    """append and repair: its rows have ids up to this one."""
    rows: Count
    """Of its files."""
    signature: str
    """Of the contents of its files: see batches.signature."""
    oldest: str = ""
    """When the first and the last of its rows finished (ISO 8601, UTC)."""
    newest: str = ""
    hours: Sequence[str] = ()
    """The hours in which its rows finished, such as 2026-11-20T09:00:00Z. A repair also names the
    hours of the rows that it removes."""
    settled_at: str = ""
    """All rows that the archive took before this instant are in the lake (ISO 8601, UTC); empty:
    not known."""
    files: Sequence[LakeFile] = ()
    removes: Sequence[str] = ()
    """compact, repair and erase: paths of files that these replace."""
    batches: Sequence[BatchSum] = ()
    """repair and erase: what the batches hold whose rows were changed."""
    archive: str = ""
    """The archive that it is of: a random name that the ledger in the database knows."""
    at: float = 0.0
    """Seconds since 1970."""
    format: int = FORMAT

    @property
    def sums(self) -> Sequence[BatchSum]:
        """What the batches hold since this commit whose rows it has changed."""
        if self.kind == "append":
            return [BatchSum(self.lo, self.rows, self.signature)]
        return self.batches

    @classmethod
    def of(cls, kind: Kind, written: WrittenFiles, **fields: Any) -> Commit:
        """The commit of these files; lake.add() gives it its number."""
        digest = written.digest
        known = {
            "lo": digest.lowest,
            "hi": digest.highest,
            "rows": digest.rows,
            "signature": str(digest.signature),
            "oldest": digest.oldest,
            "newest": digest.newest,
            "files": written.files,
        }
        return cls(seq=0, kind=kind, **{**known, **fields})


class _Format(msgspec.Struct):
    format: int = FORMAT


class Lake:
    """A directory on a shared file system with the rules of POSIX: the machines of the driver and
    of all executors see it."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self._commits = self.root / "commits"
        self.data = self.root / "data"
        """Its folders are the attempts."""
        self._known: dict[str, Commit] = {}
        """By the name of the file. Commits never change."""

    # Reading

    def commits(self) -> list[Commit]:
        """All commits in order. Raises LakeError for one that cannot be read, is missing, or
        contradicts the others."""
        commits = []
        paths = sorted(path for path in self._commits.glob("*.json") if _NAME.match(path.name))
        for number, path in enumerate(paths, start=1):
            if path.name not in self._known:
                self._known[path.name] = self._read(path)
            commit = self._known[path.name]
            if commit.seq != number or path.name != f"{number:09d}.json":
                raise LakeError(
                    f"{path} should be commit {number}: a commit file is missing or was renamed."
                )
            commits.append(commit)
        _check_ranges(commits)
        _live(commits)
        return commits

    def files(self, since: str = "", until: str = "") -> list[LakeFile]:
        """The files that count now; of these UTC dates (YYYY-MM-DD, both included) if they are
        given."""
        live = _live(self.commits()).values()
        return [
            file
            for file in live
            if (not since or file.dt >= since) and (not until or file.dt <= until)
        ]

    def paths(self, since: str = "", until: str = "") -> list[str]:
        """The paths of the same files, for pandas, DuckDB, Polars or Spark. Raises LakeError when a
        file is not there as its commit says."""
        return [str(self.check(file)) for file in self.files(since, until)]

    def check(self, file: LakeFile) -> Path:
        """The path of a file. Raises LakeError unless it has the size that its commit says."""
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
        """The last id in the lake: it has the rows of the archive up to it."""
        return last_id(self.commits())

    # Writing

    def attempt(self, lo: int, hi: int, archive: str = "") -> Path:
        """The path of a directory for the files of one attempt to write (lo, hi]. The first writer
        makes it."""
        self.data.mkdir(parents=True, exist_ok=True)
        return self.data / f"{lo}-{hi}.{archive}{os.urandom(6).hex()}"

    def files_of(self, digests: Mapping[Path, Digest]) -> list[LakeFile]:
        """Written files as a commit names them, from what each of them holds."""
        return [
            LakeFile(
                str(path.relative_to(self.root)),
                digest.rows,
                path.stat().st_size,
                path.parent.name.partition("=")[2],
                digest.lowest,
                digest.highest,
                str(digest.signature),
            )
            for path, digest in sorted(digests.items())
        ]

    def add(self, commit: Commit) -> Commit:
        """Make it the next commit, with any number, because others may commit at the same time.

        Raises LakeConflict when another commit has written the same batch, or has replaced the
        files that this one replaces. Raises LakeError when it contradicts the commits before it.
        """
        while True:
            commits = self.commits()
            if commit.kind == "append" and last_id(commits) != commit.lo:
                raise LakeConflict(
                    f"The rows up to id {last_id(commits)} are in the lake: another export was "
                    f"quicker."
                )
            if not _live(commits).keys() >= set(commit.removes):
                raise LakeConflict(
                    "The files to replace are replaced already: another compaction was quicker."
                )
            following = msgspec.structs.replace(commit, seq=len(commits) + 1)
            _check_ranges([*commits, following])
            _live([*commits, following])
            with suppress(LakeConflict):
                return self.commit(following)

    def commit(self, commit: Commit) -> Commit:
        """Make the files count, all at once. Raises LakeConflict when another commit has this
        number."""
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
            if not os.path.samefile(draft, path):  # NFS may repeat a call whose answer was lost
                raise LakeConflict(
                    f"{path} is there already: another writer has committed."
                ) from None
        finally:
            draft.unlink()
        _sync(self._commits)
        return commit

    def persist(self, attempt: Path) -> None:
        """Sync the files of an attempt to the disk: after a power failure, a commit must not name
        files that are lost."""
        for path in [*attempt.rglob("*"), attempt, self.data]:
            # A repeated task removes its own files when it ends.
            with suppress(FileNotFoundError):
                _sync(path)

    # Tidying up

    def abandoned(self, older_than: float) -> Iterator[Path]:
        """Attempts that no commit names, and to which nothing was written for this many seconds."""
        named = self._named()
        for path in sorted(self.data.glob("*")):
            if path.name in named or not _ATTEMPT.match(path.name):
                continue
            written = [path.stat().st_mtime]
            with suppress(FileNotFoundError):
                written += [found.stat().st_mtime for found in path.rglob("*")]
            if time.time() - max(written) > older_than:
                yield path

    def replaced(self, older_than: float) -> Iterator[Path]:
        """Files that still exist and that a commit replaced at least this many seconds ago."""
        for commit in self.commits():
            if time.time() - commit.at > older_than:
                yield from (path for name in commit.removes if (path := self.root / name).exists())

    def drop(self, attempt: Path) -> bool:
        """Remove an attempt, unless a commit names it by now. Returns whether it was removed."""
        if attempt.name in self._named():
            return False
        shutil.rmtree(attempt, ignore_errors=True)
        return True

    def sweep(self, older_than: float) -> int:
        """Remove abandoned attempts, replaced files, and drafts of commits. Returns the number of
        attempts and files."""
        attempts, files = list(self.abandoned(older_than)), list(self.replaced(older_than))
        attempts = [path for path in attempts if self.drop(path)]
        for path in files:
            path.unlink(missing_ok=True)
        for draft in self._commits.glob(".*.json.*"):
            with suppress(FileNotFoundError):
                if time.time() - draft.stat().st_mtime > older_than:
                    draft.unlink()
        return len(attempts) + len(files)

    def _named(self) -> set[str]:
        """The names of the attempts that a commit names."""
        return {file.path.split("/")[1] for commit in self.commits() for file in commit.files}

    def _read(self, path: Path) -> Commit:
        try:
            raw = path.read_bytes()
            found = msgspec.json.decode(raw, type=_Format).format
            if found != FORMAT:
                raise LakeError(f"{path} has format {found}, this version reads {FORMAT}.")
            commit = msgspec.json.decode(raw, type=Commit)
        except (OSError, msgspec.MsgspecError) as error:
            raise LakeError(f"{path} cannot be read as a commit: {error}") from error
        if sum(file.rows for file in commit.files) != commit.rows:
            raise LakeError(
                f"{path} says {commit.rows:,} rows, but its files add up to another number."
            )
        data = self.data.resolve()
        if any(not (self.root / file.path).resolve().is_relative_to(data) for file in commit.files):
            raise LakeError(f"{path} names a file outside of the lake's data.")
        return commit


def last_id(commits: Sequence[Commit]) -> int:
    """The last id in a lake of these commits: it has the rows of the archive up to it."""
    return max((commit.hi for commit in commits if commit.kind == "append"), default=0)


def batch_sums(commits: Sequence[Commit]) -> dict[int, BatchSum]:
    """What each batch holds now, by its lo."""
    return {batch.lo: batch for commit in commits for batch in commit.sums}


def _check_ranges(commits: Sequence[Commit]) -> None:
    """Batches follow one another without gap or overlap."""
    hi = 0
    for commit in commits:
        if commit.kind == "append":
            if commit.lo != hi or commit.hi <= commit.lo:
                raise LakeError(
                    f"Commit {commit.seq} has the ids {commit.lo} to {commit.hi}, the one before "
                    f"ended at {hi}."
                )
            hi = commit.hi


def _live(commits: Sequence[Commit]) -> dict[str, LakeFile]:
    """The files that count, by their paths."""
    live: dict[str, LakeFile] = {}
    for commit in commits:
        missing = [path for path in commit.removes if path not in live]
        again = [file.path for file in commit.files if file.path in live]
        if missing or again:
            raise LakeError(
                f"Commit {commit.seq} removes a file that is not there, or adds one that is: "
                f"{(missing + again)[0]}."
            )
        removed = [live.pop(path).rows for path in commit.removes]
        if commit.kind == "compact" and sum(removed) != commit.rows:
            raise LakeError(
                f"Commit {commit.seq} compacts {sum(removed):,} rows and has {commit.rows:,}."
            )
        if commit.kind == "erase" and sum(removed) < commit.rows:
            raise LakeError(
                f"Commit {commit.seq} erases {sum(removed):,} rows and has {commit.rows:,}."
            )
        live |= {file.path: file for file in commit.files}
    return live


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
