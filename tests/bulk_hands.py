"""What the tests of bulk operations share: runners, an operator, kills at a step, and what has to
agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple
from unittest import mock

from django.utils import timezone

from django_delayq.archive.selection import Selection
from django_delayq.models import ArchivedMessage, BulkOperation
from django_delayq.operators import bulk
from django_delayq.operators.bulk_runner import TAKE_OVER_AFTER
from tests.operators.test_replay import origins

#: Messages of a batch of a replay, as these tests have it.
BATCH = 10


class Operator(NamedTuple):
    """Somebody who may do everything but what is forbidden."""

    name: str = "olga"
    forbidden: frozenset[str] = frozenset()

    def has_perm(self, permission: str) -> bool:
        app, _, codename = permission.partition(".")
        return app == "django_delayq" and codename not in self.forbidden

    def get_username(self) -> str:
        return self.name


OPERATOR = Operator()


class Killed(BaseException):
    """As kill -9: nobody cleans up, and the database undoes the open transaction."""


def die() -> None:
    raise Killed


@contextmanager
def at(
    owner: Any, name: str, then: Callable[[], Any], *, after: bool = False, time: int = 2
) -> Iterator[None]:
    """Something happens before, or after, a call of a function: the second one, unless told
    otherwise."""
    calls: list[int] = []
    function = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        number = len(calls)
        if number == time and not after:
            then()
        answer = function(*args, **kwargs)
        if number == time and after:
            then()
        return answer

    with mock.patch.object(owner, name, call):
        yield
    assert len(calls) >= time, f"{name} was called {len(calls)} times"


def order(
    kind: str = "replay", selection: Selection | None = None, **options: Any
) -> BulkOperation:
    """An operation that waits for a worker."""
    return bulk.start(
        OPERATOR, kind, selection or Selection(topic="default"), reason="it works again", **options
    )


def be_silent() -> None:
    """As if its worker had said nothing for so long that another may take it."""
    BulkOperation.objects.update(alive_at=timezone.now() - timedelta(seconds=TAKE_OVER_AFTER + 1))


def dealt_with() -> int:
    """Dead letters that are replayed or discarded."""
    return (
        ArchivedMessage.objects.filter(state="dead")
        .exclude(replayed_at=None, discarded_at=None)
        .count()
    )


def check_agreement(operation: BulkOperation) -> None:
    """All that tells how far it is says the same, and what is the case."""
    operation.refresh_from_db()
    up_to = ArchivedMessage.objects.filter(pk__lte=operation.position).exclude(
        replayed_at=None, discarded_at=None
    )
    assert operation.action is not None
    assert (operation.count, operation.action.count, up_to.count()) == (dealt_with(),) * 3


def check_done(operation: BulkOperation, pks: list[int]) -> None:
    """It has ended, and each of these is replayed exactly once."""
    check_agreement(operation)
    assert (operation.status, operation.count, operation.total) == ("done", len(pks), len(pks))
    assert (operation.error, operation.skipped) == ("", "{}")
    assert operation.action is not None
    assert operation.finished_at == operation.action.finished_at
    assert origins() == pks
