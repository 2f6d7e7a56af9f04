"""Arguments by their annotations: what is stored, what the task gets, what is refused."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol
from uuid import UUID

import msgspec
import pytest
from django.contrib.auth.models import User
from django.utils.safestring import mark_safe
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.core.exceptions import InvalidArguments, UnserialisableArguments
from django_delayq.tasks.options import Options
from django_delayq.tasks.task import Definition
from tests.app.typed import (
    Address,
    Colour,
    Customer,
    Line,
    Order,
    Payment,
    Point,
    Rights,
    RushOrder,
    Size,
    Status,
)

if TYPE_CHECKING:
    from somewhere.that.does_not import Exist  # type: ignore[import-not-found]

UTC = timezone.utc
SOME_ID = UUID("0190a5f0-0000-7000-8000-000000000001")


def definition(func: Callable[..., Any]) -> Definition:
    return Definition(func, "t", Options())


def taking(annotation: Any) -> Definition:
    """A task with one parameter."""

    def task(value: Any) -> None: ...

    task.__annotations__["value"] = annotation
    return definition(task)


def wire(found: Definition, *args: Any, **kwargs: Any) -> Any:
    """The arguments as a worker decodes them from JSON."""
    return msgspec.json.decode(msgspec.json.encode(found.stored(args, kwargs)))


def arrived(found: Definition, value: Any) -> Any:
    """What the task gets."""
    ((got,), _) = found.annotations.read(*wire(found, value))
    return got


# Each type comes back

offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
instants = st.datetimes(timezones=st.none() | offsets)
lines = st.builds(
    Line, product=st.uuids(), price=st.decimals(allow_nan=False, allow_infinity=False)
)
orders = st.recursive(
    st.builds(Order, id=st.uuids(), placed=instants, lines=st.lists(lines, max_size=3)),
    lambda parents: st.builds(
        Order, id=st.uuids(), placed=instants, lines=st.just([]), parent=parents
    ),
    max_leaves=3,
)
amounts = st.decimals(allow_nan=False, allow_infinity=False)
EACH_TYPE: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "UUID": (UUID, st.uuids()),
    "datetime": (datetime, instants),
    "date": (date, st.dates()),
    "time": (time, st.times()),
    "timedelta": (timedelta, st.timedeltas()),
    "Decimal": (Decimal, amounts),
    "bytes": (bytes, st.binary()),
    "Enum": (Colour, st.sampled_from(Colour)),
    "TextChoices": (Status, st.sampled_from(Status)),
    "list of choices": (list[Status | None], st.lists(st.none() | st.sampled_from(Status))),
    "IntEnum": (Size, st.sampled_from(Size)),
    "Flag": (Rights, st.sampled_from([Rights.READ, Rights.READ | Rights.WRITE])),
    "dataclass": (Order, orders),
    "Struct": (Payment, st.builds(Payment, order=st.uuids(), amount=amounts)),
    "TypedDict": (Address, st.fixed_dictionaries({"city": st.text(), "since": st.dates()})),
    "NamedTuple": (Point, st.builds(Point, x=st.integers(0, 9), at=instants)),
    "pydantic": (
        Customer,
        st.builds(Customer, id=st.uuids(), born=st.dates(), level=st.integers(0, 9)),
    ),
    "list": (list[UUID], st.lists(st.uuids())),
    "tuple": (tuple[int, UUID], st.tuples(st.integers(0, 9), st.uuids())),
    "bare tuple": (tuple, st.tuples(st.integers(0, 9), st.text())),
    "set": (set[date], st.sets(st.dates())),
    "frozenset": (frozenset[str], st.frozensets(st.text())),
    "dict": (dict[UUID, Decimal], st.dictionaries(st.uuids(), amounts)),
    "dict by int": (dict[int, str], st.dictionaries(st.integers(0, 99), st.text())),
    "Optional": (UUID | None, st.none() | st.uuids()),
    "union": (int | UUID | list[date], st.integers(0, 9) | st.uuids() | st.lists(st.dates())),
    "list of models": (list[Customer], st.lists(st.builds(Customer, id=st.uuids()), max_size=3)),
}


@pytest.mark.parametrize("name", EACH_TYPE)
def test_a_value_comes_back_as_it_was(name: str) -> None:
    annotation, values = EACH_TYPE[name]
    found = taking(annotation)
    assert found.annotations.by_name["value"].problem == ""

    @given(values)
    def check(value: Any) -> None:
        got = arrived(found, value)
        assert (got, type(got)) == (value, type(value))
        if isinstance(value, datetime):
            assert got.utcoffset() == value.utcoffset()

    check()


@pytest.mark.parametrize("name", EACH_TYPE)
def test_the_json_of_a_value_may_be_given_instead(name: str) -> None:
    """As pages, replays and other languages do."""
    annotation, values = EACH_TYPE[name]
    found = taking(annotation)

    @given(values)
    def check(value: Any) -> None:
        ((written,), _) = wire(found, value)
        assert arrived(found, written) == value

    check()


def test_what_json_looks_like() -> None:
    def task(id: UUID, at: datetime, *, amount: Decimal, order: Order, **more: bytes) -> None: ...  # noqa: A002

    order = Order(SOME_ID, datetime(2026, 1, 2, tzinfo=UTC), [])
    args, kwargs = wire(
        definition(task), SOME_ID, at=order.placed, amount=Decimal("1.50"), order=order, raw=b"\0"
    )
    assert args == [str(SOME_ID)]
    assert kwargs == {
        "at": "2026-01-02T00:00:00Z",
        "amount": "1.50",
        "order": {
            "id": str(SOME_ID),
            "placed": "2026-01-02T00:00:00Z",
            "lines": [],
            "status": "open",
            "parent": None,
        },
        "raw": "AA==",
    }


def test_each_parameter_has_its_own_annotation() -> None:
    def task(first: UUID, /, second: date, *rest: Colour, last: time, **more: Decimal) -> None: ...

    found = definition(task)
    given_args = (SOME_ID, date(2026, 1, 2), Colour.RED, Colour.GREEN)
    given_kwargs = {"last": time(1), "first": Decimal(1), "other": Decimal(2)}
    args, kwargs = found.annotations.read(*wire(found, *given_args, **given_kwargs))
    assert (tuple(args), kwargs) == (given_args, given_kwargs)


# What is refused at the door


@dataclass
class Opaque:
    user: User


class Money:
    pass


#: Its offset has seconds, which JSON has not.
LONG_AGO_IN_AMSTERDAM = datetime(1900, 1, 1, tzinfo=timezone(timedelta(minutes=19, seconds=32)))
WRONG: list[tuple[Any, Any, str]] = [
    (UUID, "x", "t, value: Invalid UUID. Its annotation is uuid.UUID"),
    (UUID, 5, "Expected `uuid`, got `int`"),
    (date, datetime(2026, 1, 2), "t, value: Invalid RFC3339 encoded date"),
    (datetime, date(2026, 1, 2), "t, value: Invalid RFC3339 encoded datetime"),
    (Colour, "blue", "Invalid enum value 'blue'"),
    (Decimal, "x", "Invalid decimal string"),
    (int, "5", "t, value: Expected `int`, got `str`. Its annotation is int"),
    (int, True, "Expected `int`, got `bool`"),
    (int, None, "Expected `int`, got `null`"),
    (str, 5, "Expected `str`, got `int`"),
    (bool, 1, "Expected `bool`, got `int`"),
    (list[int], [1, "2"], "Expected `int`, got `str` - at `$[1]`"),
    (dict[str, int], {"a": "b"}, "got `str` - at `$[...]`"),
    (Literal["a", "b"], "c", "Invalid enum value 'c'"),
    (Annotated[int, msgspec.Meta(gt=0)], 0, "Expected `int` >= 1"),
    (Address, {"city": "Bonn"}, "missing required field `since`"),
    (Order, {"id": str(SOME_ID)}, "missing required field `placed`"),
    (Payment, Money(), "t, value: this value cannot be written as JSON"),
    (Customer, {"id": str(SOME_ID), "born": "2026-01-02", "level": -1}, "level: Input should be"),
    (Order, RushOrder(SOME_ID, datetime(2026, 1, 2), [], courier="C"), "this RushOrder would come"),
    (int, Decimal(5), "type Decimal"),
    (list[float], [float("nan")], "of type float"),
    (Decimal, Decimal("sNaN"), "this Decimal would come back"),
    (datetime, LONG_AGO_IN_AMSTERDAM, "this datetime would come back"),
    (list[datetime], [LONG_AGO_IN_AMSTERDAM], "this list would come back"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value", "words"), WRONG, ids=lambda part: str(part)[:30])
def test_what_does_not_fit_is_refused_by_the_name_of_its_parameter(
    annotation: Any, value: Any, words: str
) -> None:
    with pytest.raises((InvalidArguments, UnserialisableArguments)) as caught:
        taking(annotation).stored([value], {})
    assert words in str(caught.value)
    assert str(caught.value).startswith("t, value: ")


def test_what_a_pydantic_model_refuses_is_told_without_the_value() -> None:
    with pytest.raises(InvalidArguments) as caught:
        taking(Customer).stored([{"id": "secret", "born": "2026-01-02"}], {})
    assert "id: Input should be a valid UUID" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (float, 5), (int | None, None), (str, mark_safe("<b>")), (str, Status.PAID), (int, Size.SMALL),
        (object, 5), (Any, [1]), (list, ()), (Sequence[int], (1, 2)), (Mapping[str, Any], {"a": [1]}),
    ],
)  # fmt: skip
def test_what_fits_plain_json_stays_as_it_is(annotation: Any, value: Any) -> None:
    ((stored,), _) = taking(annotation).stored([value], {})
    assert stored is value
    assert taking(annotation).annotations.are_json


def test_none_fits_where_it_is_the_default() -> None:
    def task(at: datetime = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert wire(definition(task), at=None) == [[], {"at": None}]


# Annotations that do not count


class Speaks(Protocol):
    def speak(self) -> None: ...


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


@dataclass
class Cat:
    name: str


@dataclass
class Dog:
    name: str


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        ("Exist", "name 'Exist' is not defined"),
        (User, "User is no type that has JSON"),
        (Speaks, "Speaks is no type that has JSON"),
        (Opaque, "User is no type that has JSON"),
        (Mixed, "Enums must contain either all str or all int values"),
        (Cat | Dog, "may not contain more than one dataclass"),
        (UUID | str, "may not contain more than one str-like type"),
        ("an identity", "must be an expression"),
        (5, "."),
    ],
)
def test_an_annotation_that_cannot_be_read_leaves_plain_json(annotation: Any, problem: str) -> None:
    found = taking(annotation)
    assert arrived(found, {"id": 5}) == {"id": 5}
    assert problem in found.annotations.by_name["value"].problem + "."
    with pytest.raises(UnserialisableArguments, match=r"t, value: .*does not count"):
        found.stored([Cat("Tom")], {})


def test_one_such_annotation_leaves_the_others() -> None:
    def task(order: Exist, id: UUID) -> None: ...  # noqa: A002

    found = definition(task)
    assert found.annotations.read(*wire(found, 5, SOME_ID)) == ([5, SOME_ID], {})


def test_an_annotation_may_name_what_is_defined_later() -> None:
    module: dict[str, Any] = {"__name__": "late"}
    exec("from __future__ import annotations\ndef task(value: Later): ...", module)
    found = definition(module["task"])
    assert found.signature
    exec("import uuid\nLater = uuid.UUID", module)
    assert arrived(found, SOME_ID) == SOME_ID


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    number: int


def test_a_field_that_the_class_does_not_have_is_ignored_unless_it_forbids_that() -> None:
    assert arrived(taking(Cat), {"name": "Tom", "age": 5}) == Cat("Tom")
    with pytest.raises(InvalidArguments, match="contains unknown field `age`"):
        taking(Strict).stored([{"number": 1, "age": 5}], {})
