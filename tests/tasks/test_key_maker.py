"""Keys that are made from arguments: the template, the function, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.utils.safestring import mark_safe

from django_delayq import DelayedTask, delayed_task
from django_delayq.core.exceptions import InvalidArguments, InvalidKey
from tests.app.tasks import noop
from tests.app.typed import Colour, Size, Status

SOME_ID = UUID("0190a5f0-0000-7000-8000-000000000001")

pytestmark = pytest.mark.usefixtures("declared")


@dataclass
class Invoice:
    number: int
    lines: list[str]


def keyed(key: Any) -> DelayedTask[..., Any]:
    @delayed_task(name="tests.keyed", key=key)
    def task(
        order_id: int | str | bool | float | list[int] | None,
        note: str = "none",
        /,
        *rest: str,
        colour: Colour = Colour.RED,
        id: UUID = SOME_ID,  # noqa: A002
        day: date = date(2026, 1, 2),
        status: Status = Status.OPEN,
        size: Size = Size.SMALL,
        amount: Decimal = Decimal("1.50"),
        invoice: Invoice | None = None,
        **more: Any,
    ) -> None: ...

    return task


@pytest.mark.parametrize(
    ("template", "args", "kwargs", "key"),
    [
        ("order:{order_id}", (5,), {}, "order:5"),
        ("{order_id}", ("5",), {}, "5"),
        ("{order_id}", (True,), {}, "true"),
        ("{order_id}", (1.5,), {}, "1.5"),
        ("{order_id}", (mark_safe("<b>"),), {}, "<b>"),
        ("{order_id}{note}", (5, "x", "rest"), {}, "5x"),
        ("{order_id}:{note}", (5,), {}, "5:none"),
        ("{{{order_id}}}", (5,), {}, "{5}"),
        ("nightly", (5,), {}, "nightly"),
        ("{id}", (5,), {}, str(SOME_ID)),
        ("{id}", (5,), {"id": str(SOME_ID).upper()}, str(SOME_ID)),
        ("{colour}/{status}/{size}", (5,), {"colour": Colour.GREEN}, "green/open/1"),
        ("{colour}", (5,), {"colour": "green"}, "green"),
        ("{day}", (5,), {}, "2026-01-02"),
        ("{day:%Y-%m}", (5,), {"day": "2026-03-04"}, "2026-03"),
        ("{order_id:06d}", (5,), {}, "000005"),
        ("{amount}", (5,), {}, "1.50"),
        ("{invoice.number}-{invoice.lines[0]}", (5,), {"invoice": Invoice(7, ["a"])}, "7-a"),
        ("{order_id[1]}", ([4, 9],), {}, "9"),
    ],
)
def test_a_template_is_filled_with_the_arguments(
    template: str, args: Any, kwargs: Any, key: str
) -> None:
    assert keyed(template).key_for(*args, **kwargs) == key


def test_a_function_gets_the_arguments_as_the_task_does() -> None:
    seen: list[Any] = []

    def key(order_id: int, *rest: str, **kwargs: Any) -> str | None:
        seen.append((order_id, rest, kwargs))
        return f"order:{order_id}" if order_id else None

    task = keyed(key)
    assert task.key_for(5, "x", "y", id=str(SOME_ID)) == "order:5"
    assert task.key_for(0) is None
    assert seen == [(5, ("x", "y"), {"id": SOME_ID}), (0, (), {})]


def test_what_the_key_is_not_made_of_may_be_left_out() -> None:
    @delayed_task(name="tests.two", key="order:{order_id}")
    def two(order_id: int, text: str) -> None: ...

    assert two.key_for(5) == two.key_for(order_id=5) == "order:5"
    with pytest.raises(InvalidKey, match="is made of order_id, which is not given"):
        two.key_for(text="x")
    with pytest.raises(InvalidArguments, match=r"tests\.two\.key_for\(\): too many positional"):
        two.key_for(5, "x", 7)
    with pytest.raises(InvalidArguments, match="order_id: Expected `int`, got `str`"):
        typed_two().key_for("5", SOME_ID)


def typed_two() -> DelayedTask[..., Any]:
    @delayed_task(name="tests.typed_two", key="{order_id}")
    def two(order_id: int, other: UUID) -> None: ...

    return two


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("order:{ordr_id}", "names ordr_id, which is no parameter of it. Did you mean order_id?"),
        ("{rest}", "names rest, which is no parameter of it"),
        ("{more}", "names more, which is no parameter of it"),
        ("{}", "each field names a parameter"),
        ("{0}", "names 0, which is no parameter"),
        ("{order_id!r}", "neither ! nor a field within a field"),
        ("{order_id:{note}}", "neither ! nor a field within a field"),
        ("{order_id", "is no template: expected '}' before end of string"),
        (5, "key is 5: use a text such as 'order:{order_id}', or a function"),
    ],
)
def test_what_can_make_no_key_is_refused_at_the_declaration(key: Any, words: str) -> None:
    with pytest.raises(InvalidKey) as caught:
        keyed(key)
    assert words in str(caught.value)


@pytest.mark.parametrize("key", ["", "x" * 257])
def test_a_constant_key_is_checked_at_the_declaration(key: str) -> None:
    with pytest.raises(InvalidKey):
        keyed(key)


def test_an_async_function_makes_no_keys() -> None:
    async def key(order_id: int) -> str:
        return "never"

    with pytest.raises(InvalidKey, match=r"tests\.keyed is made by an async def: use a def"):
        keyed(key)


@pytest.mark.parametrize(
    ("key", "args", "words"),
    [
        ("order:{order_id}", (None,), "made of order_id, which is None: text or a number"),
        ("order:{order_id}", ([1],), "made of order_id, which is of type list"),
        ("{order_id.pk}", (5,), "order_id.pk gives AttributeError: 'int' object has no"),
        ("{order_id:%Y}", ("x",), "order_id gives ValueError"),
        ("{order_id}", ("",), "key is ''. A key is a string of 1 to 256 characters"),
        ("{order_id}", ("x" * 257,), "A key is a string of 1 to 256"),
        (lambda order_id: 5, (5,), "key is 5. A key is a string"),
    ],
)
def test_an_argument_that_makes_no_key_is_refused(key: Any, args: Any, words: str) -> None:
    with pytest.raises(InvalidKey) as caught:
        keyed(key).key_for(*args)
    assert words in str(caught.value)


def test_a_task_without_one_says_so() -> None:
    with pytest.raises(InvalidKey, match=r"noop makes no keys\. @delayed_task\(key='order:"):
        noop.key_for()
    assert noop.using(key="given").key_for() == "given"


def test_a_copy_keeps_it_and_a_pickle_of_it_too() -> None:
    task = keyed("order:{order_id}")
    assert task.using(delay=5).key_for(5) == "order:5"
    _, (_, _, changes) = task.using(delay=5).__reduce__()
    assert changes == {"when": "+5000"}
    _, (_, _, changes) = task.using(key="k").__reduce__()
    assert changes == {"key": "k", "key_maker": None}
