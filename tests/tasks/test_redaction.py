"""What is hidden of arguments: paths, shapes, texts; and what a declaration and the checks say."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import delayed_task
from django_delayq.checks import check_encryption, check_secrets
from django_delayq.core.exceptions import InvalidMessage, InvalidTask
from django_delayq.tasks.redaction import MARK, hidden_texts, shown_arguments, without


def declare(func: Any, *secret: str, **options: Any) -> None:
    delayed_task(name="pay", secret=secret, **options)(func)


def pay(order: int, card: Any = None, *rest: Any, **more: Any) -> None:
    """A task."""


@pytest.mark.parametrize(
    ("secret", "args", "kwargs", "seen"),
    [
        (("card",), [1, "x"], {}, ([1, MARK], {})),
        (("card",), [1], {"card": "x"}, ([1], {"card": MARK})),
        (("card",), [1, None], {}, ([1, None], {})),
        (("card.number",), [1, {"number": 5, "of": 6}], {}, ([1, {"number": MARK, "of": 6}], {})),
        (("card.number",), [1, [{"number": 5}]], {}, ([1, [{"number": MARK}]], {})),
        (("card.1",), [1, [5, 6]], {}, ([1, [5, MARK]], {})),
        (("card.number",), [1, "another form"], {}, ([1, MARK], {})),
        (("rest",), [1, 2, 3, 4], {}, ([1, 2, MARK, MARK], {})),
        (("more",), [1], {"a": 2}, ([1], {"a": MARK})),
        (("a",), [1], {"a": 2, "b": 3}, ([1], {"a": MARK, "b": 3})),
    ],
)
def test_a_path_hides(
    declared: Any, settings: Any, secret: Any, args: Any, kwargs: Any, seen: Any
) -> None:
    declare(pay, *secret)
    before = repr((args, kwargs))
    found = shown_arguments("default", "pay", args, kwargs)
    assert (found.args, found.kwargs) == seen
    assert repr((args, kwargs)) == before, "the arguments themselves stay"


def test_arguments_that_no_parameter_has_are_hidden(declared: Any) -> None:
    declare(lambda card: None, "card")
    assert shown_arguments("default", "pay", ["x", "y"], {}).args == [MARK, MARK]


def test_texts_are_cleaned_in_each_way_they_are_written(declared: Any) -> None:
    declare(pay, "card")
    hidden = hidden_texts("default", "pay", ([1, 'a"b\u00fc'], {}))
    for text in ('a"b\u00fc', r"a\"b\u00fc", repr('a"b\u00fc')):
        assert "b" not in without(f"<{text}>", hidden)
    short = hidden_texts("default", "pay", ([1, 7], {}))
    assert without("line 17: 7 is wrong", short) == f"line 17: {MARK} is wrong"


@pytest.mark.parametrize("secret", ["nobody", ("card", "nobody.street")])
def test_a_name_that_the_task_does_not_have_is_refused(declared: Any, secret: Any) -> None:
    with pytest.raises(InvalidTask, match="nobody"):
        delayed_task(name="few", secret=secret)(lambda card: None)


@pytest.mark.parametrize("secret", [7, ("",), ("a..b",), (7,)])
def test_what_is_no_name_is_refused(declared: Any, secret: Any) -> None:
    with pytest.raises(InvalidMessage, match="secret"):
        delayed_task(name="few", secret=secret)(lambda card: None)


def test_a_key_of_a_secret_is_found(declared: Any, settings: Any, delayq: Any) -> None:
    declare(pay, "card", key="card:{card}")
    assert "delayq.W004" in [message.id for message in check_secrets()]
    assert "delayq.W008" in [message.id for message in check_encryption()]
    declared.pop("pay")
    assert check_secrets() == []
