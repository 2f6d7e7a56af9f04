"""The checkpoint of the job stream: Spark's offsets, and beside them which lake they are about.

    CHECKPOINT/offsets/<batch>
        written by Spark before a batch runs; its last line is {"id": n}, where the batch ends
    CHECKPOINT/commits/<batch>
        written by Spark after it
    CHECKPOINT/delayq.json
        ours: the last commit of the lake that this checkpoint has seen

The lake decides what is in it; a checkpoint only says where Spark goes on. Pure Python, no Spark.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ..errors import Refused
from ..lake.lake import Lake


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A commit of the lake, so that another lake is known from this one."""

    seq: int = 0
    hi: int = 0
    signature: str = ""


class Checkpoint:
    """A directory that only the driver needs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def end_of(self, batch: int) -> int:
        """The id with which a batch ends that Spark has planned. Raises Refused when Spark's file
        does not say it."""
        path = self.path / "offsets" / str(batch)
        try:
            return int(msgspec.json.decode(path.read_text(encoding="utf-8").splitlines()[-1])["id"])
        except (OSError, IndexError, KeyError, TypeError, ValueError) as error:
            raise Refused(
                f"{path} cannot be read as an offset of the archive: {error!r}. {self._fix}"
            ) from error

    @property
    def reached(self) -> int:
        """The id with which the last batch ended that Spark has done; 0 before the first."""
        done = [int(path.name) for path in self.path.glob("commits/*") if path.name.isdecimal()]
        return self.end_of(max(done)) if done else 0

    def check(self, lake: Lake) -> None:
        """Raise Refused when this is about another lake, or says more is in it than there is."""
        seen, commits = self._seen(), lake.commits()
        known = commits[seen.seq - 1] if 0 < seen.seq <= len(commits) else None
        if seen.seq and (known is None or (known.hi, known.signature) != (seen.hi, seen.signature)):
            raise Refused(
                f"{self.path} is the checkpoint of another lake, or {lake.root} was replaced: "
                f"it knows a commit {seen.seq} up to id {seen.hi:,}, which is not in this lake. "
                f"{self._fix}"
            )
        if self.reached > lake.last_id:
            raise Refused(
                f"{self.path} says that {lake.root} holds the archive up to id {self.reached:,}, "
                f"but it ends at {lake.last_id:,}: an older copy, or another lake. {self._fix}"
            )

    def mark(self, lake: Lake) -> None:
        """Remember the lake's last commit."""
        commits = lake.commits()
        if not commits:
            return
        last = commits[-1]
        self.path.mkdir(parents=True, exist_ok=True)
        draft = self.path / ".delayq.json"
        draft.write_bytes(
            msgspec.json.encode(Seen(seq=last.seq, hi=last.hi, signature=last.signature))
        )
        os.replace(draft, self.path / "delayq.json")

    def _seen(self) -> Seen:
        path = self.path / "delayq.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Seen)
        except FileNotFoundError:
            return Seen()
        except (OSError, msgspec.MsgspecError) as error:
            raise Refused(f"{path} cannot be read: {error}. {self._fix}") from error

    @property
    def _fix(self) -> str:
        return (
            f"Remove the directory {self.path} and run again: the stream then begins where the "
            f"lake ends, "
            "and takes nothing twice."
        )
