"""Arguments as people write them: what is not touched comes back exactly, and what is wrong is
refused at its field."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq import delayed_task
from django_delayq.admin.forms.message_forms import ArgumentsForm, WhenForm, clock_in_words
from django_delayq.client.decorator import DelayedTask
from django_delayq.tasks.arguments import in_one_line

HOSTILE = "</textarea><script>alert(1)</script>"


@pytest.fixture
def task(declared: dict[str, Any]) -> DelayedTask[Any, Any]:
    """One parameter of each kind."""

    @delayed_task(name="t.every")
    def every(
        first: int,
        note: str,
        /,
        middle: Any = None,
        text: str = "plain",
        *more: Any,
        last: float = 1.5,
        **others: Any,
    ) -> None: ...

    return every


def posted(form: ArgumentsForm, **changes: str) -> dict[str, str]:
    """What a browser sends when people change only this: each line end as two characters."""
    fields = {field.html_name: field.value() or "" for field in form}
    fields |= {f"argument_{name}": text for name, text in changes.items()}
    return {name: text.replace("\n", "\r\n") for name, text in fields.items()}


def saved(name: str, arguments: Any, **changes: str) -> ArgumentsForm:
    """The form after it was shown with these arguments and sent with these changes."""
    form = ArgumentsForm(name, arguments, posted(ArgumentsForm(name, arguments), **changes))
    form.is_valid()
    return form


def errors(form: ArgumentsForm) -> dict[str, list[str]]:
    """By the name of the parameter."""
    return {
        name.removeprefix("argument_"): list(messages) for name, messages in form.errors.items()
    }


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    args=st.lists(JSON, max_size=4), kwargs=st.dictionaries(st.text(max_size=8), JSON, max_size=3)
)
def test_what_nobody_touches_comes_back_exactly(args: list[Any], kwargs: dict[str, Any]) -> None:
    form = saved("tests.app.tasks.noop", (args, kwargs))
    assert not form.errors
    assert json.dumps(form.arguments()) == json.dumps([args, kwargs])


@given(
    text=st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(["two\nlines", '"', '""', '"a', ' "a" ', "\r\n\n", " "])
)
def test_text_comes_back_exactly_whatever_it_looks_like(text: str) -> None:
    arguments = ([7], {"reason": text})
    form = saved("tests.app.tasks.close_order", arguments)
    assert form.arguments() == ([7], {"reason": text})


@pytest.mark.parametrize(
    "arguments",
    [
        ([1, "a"], {}),
        ([1, "a", 3], {}),
        ([1, "a"], {"middle": 3}),
        ([1, "a", 3], {"text": ""}),
        ([1, "a", 3, "x", [4], {"5": None}], {"last": 2.0, "other": 2**60 + 1}),
        ([1, "a"], {"first": "goes to **others", "zeta": 1, "alpha": 2}),
    ],
)
def test_what_was_given_by_position_still_is(task: DelayedTask[Any, Any], arguments: Any) -> None:
    form = saved(task.name, arguments)
    assert not form.is_raw
    assert form.arguments() == arguments


def test_a_new_call_names_what_may_be_named(task: DelayedTask[Any, Any]) -> None:
    form = saved(task.name, None, first="1", note="a", middle="[2]", last="3")
    assert form.arguments() == ([1, "a"], {"middle": [2], "last": 3})


def test_further_arguments_make_those_before_them_positional(task: DelayedTask[Any, Any]) -> None:
    assert saved(
        task.name, None, first="1", note="a", middle="2", text="t", more="[3]"
    ).arguments() == (
        [1, "a", 2, "t", 3],
        {},
    )
    wrong = saved(task.name, None, first="1", note="a", text="t", more="[3]")
    assert errors(wrong) == {
        "middle": ["Give this one too: what comes after it is given by position."]
    }


def test_an_argument_taken_away_gives_those_after_it_their_names(
    task: DelayedTask[Any, Any],
) -> None:
    assert saved(task.name, ([1, "a", 2, "t"], {}), middle="").arguments() == (
        [1, "a"],
        {"text": "t"},
    )


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("first", "", "Write a value."),
        ("note", "", 'Write a value; for an empty text "".'),
        ("first", "one", "This is not JSON (line 1, column 1"),
        ("first", "NaN", "JSON has no NaN"),
        ("first", "[1, -Infinity]", "JSON has no -Infinity"),
        ("first", "1e999", "An argument is inf"),
        ("first", "9" * 5000, "too many digits"),
        ("first", "[" * 50_000, "nested too deeply"),
        ("first", "[" * 40 + "]" * 40, "deeper than 32 levels"),
        ("first", '{"a": 1, "a": 2}', 'The name "a" stands twice'),
        ("first", '"\\ud800"', "cannot be written as JSON"),
        ("first", "\x001", "Null characters are not allowed"),
        ("first", '"' + "x" * 70_000 + '"', "the limit is 65,536"),
        ("note", '"half', None),
        ("note", '"a" and "b"', "This is not JSON"),
        ("more", "{}", "A JSON array is wanted"),
        ("others", "[]", "A JSON object is wanted"),
        ("others", '{"text": 1}', "text has a field of its own"),
        ("others", '{"last": 1}', "last has a field of its own"),
        ("others", '{"first": 1}', None),
    ],
)
def test_what_is_wrong_is_said_at_its_field(
    task: DelayedTask[Any, Any], name: str, text: str, words: str | None
) -> None:
    form = saved(task.name, ([1, "a"], {}), **{name: text})
    if words is None:
        assert not form.errors
        return
    assert list(errors(form)) == [name]
    assert words in errors(form)[name][0]


def test_all_together_are_not_larger_than_a_body_may_be() -> None:
    form = saved(
        "tests.app.tasks.noop",
        None,
        args=json.dumps(["x" * 40_000]),
        kwargs=json.dumps({"a": "x" * 40_000}),
    )
    assert "the limit is 65,536" in errors(form)["__all__"][0]


def test_sixty_kilobytes_pass() -> None:
    rows = [{"number": number, "name": "雪 🎈"} for number in range(1_500)]
    form = saved("tests.app.tasks.record", ([rows], {}))
    assert form.arguments() == ([rows], {})


def test_a_task_that_nobody_declares_has_two_raw_fields() -> None:
    form = saved("gone.task", ([1], {"a": 2}), kwargs='{"a": 3}')
    assert form.is_raw and not form.is_known
    assert form.arguments() == ([1], {"a": 3})


@pytest.mark.parametrize(
    "arguments", [([], {}), ([1], {"nobody": 2}), ([1, 2, 3], {}), ([1], {"reason": 5})]
)
def test_arguments_that_do_not_fit_have_two_raw_fields_and_must_fit_when_they_are_saved(
    arguments: Any,
) -> None:
    form = saved("tests.app.tasks.close_order", arguments)
    assert form.is_raw
    if arguments == ([1], {"reason": 5}):  # fits, but a field for text could not show a number
        assert form.arguments() == arguments
    else:
        assert "cannot be called so" in errors(form)["__all__"][0]
    assert saved("tests.app.tasks.close_order", arguments, args="[7]", kwargs="").arguments() == (
        [7],
        {},
    )


def test_a_form_from_before_another_edit_or_deploy_is_refused() -> None:
    old = posted(ArgumentsForm("tests.app.tasks.close_order", ([1], {})))
    form = ArgumentsForm("tests.app.tasks.close_order", ([2], {}), old)
    assert "have changed since this page was opened" in errors(form)["__all__"][0]


def test_the_page_shows_what_is_there_and_nothing_of_it_works() -> None:
    html = str(
        ArgumentsForm(
            "tests.app.tasks.close_order", ([HOSTILE], {"reason": HOSTILE + "\u202e\x7f"})
        )
    )
    assert HOSTILE not in html and "&lt;/textarea&gt;" in html
    assert "\u202e" not in html and "\\u202e\\u007f" in html


def test_each_field_says_what_it_takes() -> None:
    html = str(ArgumentsForm("tests.app.tasks.close_order"))
    assert '<label for="id_argument_order_id">order_id</label>' in html
    assert "int. JSON. Quote text: &quot;abc&quot;." in html
    assert (
        "str. Plain text. Text in double quotes is read as JSON. If empty: &#x27;unpaid&#x27;."
        in html
    )
    assert (
        'aria-describedby="id_argument_reason_helptext"' in html
        and 'id="id_argument_reason_helptext"' in html
    )


# Times


def test_an_instant_is_aware_without_time_zones_in_the_project_too(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Tokyo"
    form = WhenForm({"at": "2030-01-01T09:00"})
    assert form.is_valid(), form.errors
    assert form.cleaned_data["at"] == datetime(2030, 1, 1, tzinfo=timezone.utc)
    assert form.cleaned_data["at"].tzinfo is not None


def test_an_instant_may_name_its_own_zone() -> None:
    form = WhenForm({"at": "2030-01-01T09:00:00+09:00"})
    assert form.is_valid(), form.errors
    assert form.cleaned_data["at"] == datetime(2030, 1, 1, tzinfo=timezone.utc)


def test_the_clock_is_that_of_the_zone(settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    hour = (datetime.now(tz=timezone.utc).hour + 9) % 24
    assert "Asia/Tokyo" in clock_in_words() and f" {hour:02}:" in clock_in_words()


@pytest.mark.parametrize(
    ("amount", "unit", "seconds"), [("0", "1", 0), ("1.5", "3600", 5400), ("2", "86400", 172_800)]
)
def test_a_length_of_time_is_a_number_of_units(amount: str, unit: str, seconds: float) -> None:
    form = WhenForm({"delay": amount, "delay_unit": unit})
    assert form.is_valid() and form.cleaned_data["delay"] == seconds


def test_a_call_in_one_line_is_cut() -> None:
    assert in_one_line([1, "a"], {"b": None}) == '1, "a", b=null'
    assert in_one_line(["x" * 200], {}) == '"' + "x" * 118 + "…"
    assert in_one_line(["\u202e\n"], {}) == '"\\u202e\\n"'
