"""Types that the arguments of tasks may have."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
from django.db.models import TextChoices


class Status(TextChoices):
    OPEN = "open", "Open"
    PAID = "paid", "Paid"


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Line:
    product: UUID
    price: Decimal
    tags: list[str] = field(default_factory=list)


@dataclass
class Order:
    id: UUID
    placed: datetime
    lines: list[Line]
    status: Status = Status.OPEN
    parent: Order | None = None


@dataclass
class RushOrder(Order):
    courier: str = ""


class Payment(msgspec.Struct):
    order: UUID
    amount: Decimal


class Address(TypedDict):
    city: str
    since: date


class Point(NamedTuple):
    x: int
    at: datetime


class Customer(pydantic.BaseModel):
    id: UUID
    born: date
    level: int = pydantic.Field(ge=0, default=0)


#: What the functions below were called with.
called: list[tuple[Any, ...]] = []


def settle(order: Order, paid: Decimal = Decimal(0), *, at: datetime | None = None) -> None:
    """Settles an order."""
    called.append((order, paid, at))


async def settle_async(order: Order, paid: Decimal = Decimal(0)) -> None:
    called.append((order, paid))


def greet(customer: Customer, *, address: Address) -> None:
    called.append((customer, address))
