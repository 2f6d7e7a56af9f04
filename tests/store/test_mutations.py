"""The list of mutations is up to date: `make mutations` runs them, which takes half an hour."""

from __future__ import annotations

import pytest

from tests.store.mutations import MUTATIONS, Mutation, stale


def test_every_mutation_stands_in_its_script() -> None:
    assert [mutation for mutation in MUTATIONS if stale(mutation)] == []


def test_every_mutation_changes_something_and_is_there_once() -> None:
    assert [mutation for mutation in MUTATIONS if mutation.old == mutation.new] == []
    assert len(set(MUTATIONS)) == len(MUTATIONS)


@pytest.mark.parametrize("script", ["ack", "no_such_script"])
def test_text_that_stands_nowhere_is_stale(script: str) -> None:
    assert stale(Mutation(script, "a text that stands nowhere", ""))
