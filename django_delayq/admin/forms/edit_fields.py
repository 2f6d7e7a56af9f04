"""The fields that say what becomes of one argument of many messages."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy

from ...core.exceptions import InvalidMessage
from ...tasks.argument_edit import ArgumentEdit

#: The names that a form gives them.
EDIT_FIELDS = ("edit_argument", "edit_how", "edit_values")

_HOWS = (
    ("set", gettext_lazy("Set it to a value")),
    ("map", gettext_lazy("Map old values to new ones")),
    ("replace", gettext_lazy("Replace a text inside of it")),
    ("remove", gettext_lazy("Remove it")),
)


def argument_field() -> forms.CharField:
    """The name of the argument; empty for no edit."""
    return forms.CharField(
        label=gettext_lazy("Argument"),
        required=False,
        max_length=200,
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
        help_text=gettext_lazy("Its name. A dot leads inside: address.city."),
    )


def how_field() -> forms.ChoiceField:
    """What is done to it."""
    return forms.ChoiceField(
        label=gettext_lazy("What happens to it"), required=False, choices=_HOWS
    )


def values_field() -> forms.CharField:
    """The value, or the pairs."""
    return forms.CharField(
        label=gettext_lazy("Value"),
        required=False,
        max_length=20_000,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 2, "spellcheck": "false", "autocomplete": "off"}),
        help_text=gettext_lazy(
            "To set: the new value, as JSON or as a plain word. To map or to replace: a line "
            "“old -> new” for each pair."
        ),
    )


def edit_from(task: str, given: dict[str, Any]) -> ArgumentEdit:
    """What the fields mean for this task. Raises InvalidMessage."""
    how = given.get("edit_how") or "set"
    values = given.get("edit_values", "").replace("\r\n", "\n")
    return ArgumentEdit.read(task, given.get("edit_argument", ""), how, values)


def edit_initial(options: dict[str, Any]) -> dict[str, str]:
    """What the fields show for an edit that was ordered before."""
    try:
        edit = ArgumentEdit.decode(options.get("edit"))
    except InvalidMessage:
        return {}
    values = "" if edit.how == "remove" else edit.as_written()
    return {"edit_argument": edit.argument, "edit_how": edit.how, "edit_values": values}
