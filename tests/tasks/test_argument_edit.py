"""An edit of one argument: what people write becomes typed values, and only what fits is changed."""

from __future__ import annotations

from datetime import date
from typing import Any
from uuid import UUID

import pytest

from django_delayq.client.decorator import delayed_task
from django_delayq.core.exceptions import InvalidArguments, InvalidMessage
from django_delayq.tasks.argument_edit import ArgumentEdit, digest

NAME = "tests.deliver"


@pytest.fixture(autouse=True)
def task(declared: Any) -> Any:
    """A task with one parameter of each kind."""

    @delayed_task(name=NAME, secret=("token",))
    def deliver(
        url: str,
        count: int = 1,
        *,
        day: date = date(2026, 1, 1),
        ref: UUID | None = None,
        tags: dict[str, Any] | None = None,
        token: str = "",
    ) -> None: ...

    return deliver


def read(argument: str, text: str, how: str = "set") -> ArgumentEdit:
    return ArgumentEdit.read(NAME, argument, how, text)


@pytest.mark.parametrize(
    ("argument", "text", "value"),
    [
        ("url", "https://new.example/a", "https://new.example/a"),
        ("url", "42", "42"),
        ("url", '"42"', "42"),
        ("count", "42", 42),
        ("day", "2026-02-03", "2026-02-03"),
        ("ref", "null", None),
        ("ref", "8c7b1d9e-1111-4222-8333-444455556666", "8c7b1d9e-1111-4222-8333-444455556666"),
        ("tags.colour", "red", "red"),
        ("tags.size", "[1, 2]", [1, 2]),
    ],
)
def test_a_value_gets_the_type_of_its_parameter(argument: str, text: str, value: Any) -> None:
    edit = read(argument, text)
    assert edit.value == value
    assert ArgumentEdit.decode(edit.encode()) == edit
    assert ArgumentEdit.read(NAME, argument, "set", edit.as_written()) == edit


@pytest.mark.parametrize(
    ("argument", "text", "how", "words"),
    [
        ("count", "many", "set", "count"),
        ("day", "tomorrow", "set", "day"),
        ("ulr", "x", "set", "Did you mean url"),
        ("args", "[1]", "set", "no argument args"),
        ("token", "x", "set", "secret"),
        ("token", "a -> b", "replace", "secret"),
        ("url", "", "map", "pairs"),
        ("url", "a, b", "map", "old -> new"),
        ("url", " -> b", "map", "old -> new"),
        ("url", "[redacted]", "set", "hidden"),
        ("count", "1 -> many", "map", "count"),
        ("url", "x", "turn", "no edit"),
        ("", "x", "set", "name of the argument"),
    ],
)
def test_what_the_task_does_not_take_is_refused_at_the_door(
    argument: str, text: str, how: str, words: str
) -> None:
    with pytest.raises(InvalidMessage, match=words):
        read(argument, text, how)


def test_an_edit_needs_a_task_that_is_declared() -> None:
    with pytest.raises(InvalidMessage, match="task first"):
        ArgumentEdit(task="gone.task", argument="url", value="x")


def test_a_value_is_set_where_it_stands_and_the_rest_stays() -> None:
    edit = read("url", "new")
    assert edit.edited("default", (["old", 7], {})) == (["new", 7], {})
    assert edit.edited("default", ([], {"url": "old", "count": 7})) == (
        [],
        {"url": "new", "count": 7},
    )
    assert edit.edited("default", ([], {"count": 7})) == ([], {"count": 7, "url": "new"})


def test_an_edit_reaches_inside_of_an_argument() -> None:
    before = (["u"], {"tags": {"size": [1, 2], "colour": "red"}})
    assert read("tags.size.1", "5").edited("default", before) == (
        ["u"],
        {"tags": {"size": [1, 5], "colour": "red"}},
    )
    assert read("tags.colour.x", "5").edited("default", before) is None
    assert read("tags.size.9", "5").edited("default", before) is None
    assert before[1]["tags"]["size"] == [1, 2]


def test_only_values_of_a_pair_are_mapped_and_types_count() -> None:
    edit = read("count", "1 -> 2\n2 -> 3", "map")
    assert edit.edited("default", (["u", 1], {})) == (["u", 2], {})
    assert edit.edited("default", (["u", 2], {})) == (["u", 3], {})
    assert edit.edited("default", (["u", 4], {})) is None
    assert edit.edited("default", (["u", True], {})) is None
    assert edit.edited("default", (["u"], {})) is None


def test_a_text_is_replaced_inside_of_a_value() -> None:
    edit = read("url", 'http:// -> https://\n"a->b" -> c', "replace")
    assert edit.pairs == (("http://", "https://"), ("a->b", "c"))
    assert edit.edited("default", (["http://x/a->b"], {})) == (["https://x/c"], {})
    assert edit.edited("default", (["ftp://x"], {})) is None
    assert ArgumentEdit.read(NAME, "url", "replace", edit.as_written()) == edit


def test_an_argument_that_the_task_no_longer_takes_is_removed() -> None:
    edit = read("colour", "", "remove")
    assert edit.edited("default", (["u"], {"colour": "red"})) == (["u"], {})
    assert edit.edited("default", (["u"], {})) is None


def test_what_the_task_does_not_take_afterwards_is_refused() -> None:
    with pytest.raises(InvalidArguments):
        read("count", "5").edited("default", (["u"], {"colour": "red"}))


def hide(topic: str, task: str, args: Any, kwargs: Any) -> Any:
    return ["hidden" for _ in args], kwargs


def test_what_is_hidden_is_neither_mapped_nor_replaced(settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDACT": f"{__name__}.hide"}
    assert read("url", "a -> b", "map").edited("default", (["a"], {})) is None
    assert read("url", "a -> b", "replace").edited("default", (["xa"], {})) is None
    assert read("url", "b").edited("default", (["a"], {})) == (["b"], {})


def test_the_words_tell_no_value() -> None:
    assert read("url", "https://secret").in_words() == "argument url: set"
    assert "secret" not in read("url", "secret -> b", "map").in_words()


def test_a_digest_tells_whether_arguments_are_the_same() -> None:
    assert digest(([1], {"a": 1, "b": 2})) == digest(((1,), {"b": 2, "a": 1}))
    assert digest(([1], {})) != digest(([1.0], {})) != digest((["1"], {}))
