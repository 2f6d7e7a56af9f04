"""How far a message travels: the files that a lone enqueue runs through."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType

import pytest

import django_delayq
from django_delayq.core import signals
from django_delayq.outbox import postponed
from django_delayq.store.store import RedisStore
from tests.app.tasks import noop
from tests.sending import with_transactions

PACKAGE = Path(django_delayq.__file__).parent


@with_transactions
def test_a_lone_enqueue_passes_at_most_eight_files(
    delayq: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What other tests have left: a process that was never without Redis, and has no OpenTelemetry.
    postponed.pending.clear()
    monkeypatch.setattr(signals.enqueued, "receivers", [])
    later = noop.using(delay=60)
    for _ in range(2):  # the first tells Redis the name of the task
        later.enqueue(1)
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files[str(path.relative_to(PACKAGE))] = None

    gc.collect()  # generators of other tests would be closed meanwhile, and be noted
    gc.disable()
    sys.setprofile(note)
    try:
        handle = later.enqueue(1)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert handle.outcome == "stored"
    assert len(files) <= 8, " ".join(sorted(files))
