"""The chaos programs name functions of the package: a move of one must not disarm them."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter

import pytest

from tests.chaos.failpoints import POINTS, Point


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS.keys())
def test_each_failpoint_stands_at_a_function(point: Point) -> None:
    module = import_module(f"django_delayq.{point.module}")
    assert callable(attrgetter(point.function)(module))
