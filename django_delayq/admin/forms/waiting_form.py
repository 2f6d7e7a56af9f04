"""The forms about many waiting messages: the filters, and what is to be done to those that fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from django import forms
from django.http import QueryDict
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...core.exceptions import InvalidMessage
from ...models import BulkKind
from ...operators.bulk import ALL_TOPICS, MANY
from ...operators.edit_examples import EditExample, of_waiting
from ...operators.topic_permission import Topics
from ...operators.waiting_list import WaitingPreview
from ...operators.waiting_orders import WaitingChange
from ...operators.waiting_selection import WaitingSelection
from ...tasks.argument_edit import ArgumentEdit
from .archive_form import offered_tasks, offered_topics
from .bulk_form import reason_field, word_field
from .edit_fields import EDIT_FIELDS, argument_field, edit_from, how_field, values_field
from .message_forms import DurationField, InstantField, offer_names

#: What can be done, as the form has it.
CHANGES = (
    ("cancel", gettext_lazy("Cancel them")),
    ("later", gettext_lazy("Shift them to later")),
    ("earlier", gettext_lazy("Shift them to earlier")),
    ("now", gettext_lazy("Run them now")),
    ("move", gettext_lazy("Move them to another topic")),
    ("edit", gettext_lazy("Edit one argument of them")),
)


class WaitingFilters(forms.Form):
    """Of the address's parameters. After is_valid() `selection` is what they mean."""

    topic = forms.ChoiceField(label=gettext_lazy("Topic"), required=False)
    task = forms.ChoiceField(label=gettext_lazy("Task"), required=False)
    key_prefix = forms.CharField(
        label=gettext_lazy("Key begins with"), required=False, max_length=256, strip=False
    )
    since = InstantField(label=gettext_lazy("Due from"), required=False)
    until = InstantField(label=gettext_lazy("Due before"), required=False)
    argument = forms.CharField(
        label=gettext_lazy("Argument"),
        required=False,
        max_length=500,
        widget=forms.TextInput(attrs={"placeholder": "order_id=1042", "autocomplete": "off"}),
    )

    selection: WaitingSelection

    def __init__(self, query: QueryDict, topics: Topics = None) -> None:
        """`topics`: those that the user may see."""
        super().__init__(query)
        self.query = query
        known = {"topic": offered_topics(topics), "task": offered_tasks(topics)}
        anything = {"topic": _("All topics"), "task": _("All tasks")}
        for name, names in known.items():
            # Redis may have topics and tasks that the code no longer declares.
            offered = sorted({*names, *filter(None, [query.get(name, "")])})
            offer_names(self, name, offered, anything[name])

    def clean(self) -> dict[str, Any]:
        """Read the whole selection."""
        given = super().clean() or self.cleaned_data
        if self.errors:
            return given
        name, equals, value = given["argument"].partition("=")
        if given["argument"] and not (name.strip() and equals):
            self.add_error("argument", _("Write a name and a value, such as order_id=1042."))
            return given
        plain = {part: given[part] for part in ("topic", "task", "key_prefix", "since", "until")}
        text = ",".join([*self.query.getlist("id"), self.query.get("ids", "")])
        ids = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        try:
            self.selection = WaitingSelection(
                **plain, ids=ids, argument=name.strip(), value=value.strip()
            )
        except InvalidMessage as error:
            self.add_error(None, str(error))
        return given


def waiting_query(selection: WaitingSelection) -> str:
    """The address's parameters that mean this selection."""
    zone = timezone.get_default_timezone()

    def text(when: datetime | None) -> str:
        return when.astimezone(zone).isoformat() if when else ""

    values = {
        "topic": selection.topic,
        "task": selection.task,
        "key_prefix": selection.key_prefix,
        "ids": ",".join(selection.ids),
        "since": text(selection.since),
        "until": text(selection.until),
        "argument": f"{selection.argument}={selection.value}" if selection.argument else "",
    }
    query = QueryDict(mutable=True)
    query.update({name: value for name, value in values.items() if value})
    return query.urlencode(safe=",:")


class WaitingChangeForm(forms.Form):
    """What to do with the messages that fit. A dry run needs neither a reason nor the word."""

    query = forms.CharField(widget=forms.HiddenInput, required=False)
    """The filters."""
    token = forms.UUIDField(widget=forms.HiddenInput)
    change = forms.ChoiceField(label=gettext_lazy("What to do"), choices=CHANGES)
    by = DurationField(
        label=gettext_lazy("By how much"),
        help_text=gettext_lazy("For a shift. No message becomes due before now."),
    )
    to = forms.ChoiceField(
        label=gettext_lazy("To topic"), required=False, help_text=gettext_lazy("For a move.")
    )
    edit_argument = argument_field()
    edit_how = how_field()
    edit_values = values_field()
    reason = reason_field()
    word = word_field()

    change_asked: WaitingChange

    def __init__(  # noqa: PLR0913 - the last two are keyword-only, and of the user
        self,
        selection: WaitingSelection,
        about: WaitingPreview,
        data: QueryDict | None = None,
        initial: dict[str, Any] | None = None,
        *,
        targets: Topics = None,
        may_change: bool = True,
        may_edit: bool = False,
    ) -> None:
        """`targets`: the topics to which the user may move them. `may_change`: whether the user may
        do what is not an edit."""
        given = {"query": waiting_query(selection), "token": uuid4().hex, **(initial or {})}
        super().__init__(data, initial=given, label_suffix="")
        topics = [name for name in offered_topics(targets) if name != selection.topic]
        offer_names(self, "to", topics, "–")
        self.task = selection.task
        """Of an edit: arguments are those of one task."""
        self.about = about
        self.fields["change"].choices = [  # type: ignore[attr-defined]
            pair for pair in CHANGES if (may_edit if pair[0] == "edit" else may_change)
        ]
        if not may_edit:
            for name in EDIT_FIELDS:
                del self.fields[name]
        is_many = about.more or about.count > MANY
        self.word_asked = (selection.topic or ALL_TOPICS) if is_many else ""
        if self.word_asked:
            self.fields["word"].label = _("Type “%(word)s” to confirm") % {"word": self.word_asked}
        else:
            del self.fields["word"]
        self.dry_run = bool(data and data.get("dry_run"))
        self.only_shows = bool(data and data.get("show"))
        """Whether the examples of the edit are asked for, and nothing is ordered."""

    @property
    def plain_fields(self) -> list[forms.BoundField]:
        """What is to be done, except for an edit."""
        return [self[name] for name in ("change", "by", "to")]

    @property
    def edit_fields(self) -> list[forms.BoundField]:
        """Those about an edit."""
        return [self[name] for name in EDIT_FIELDS if name in self.fields]

    @property
    def last_fields(self) -> list[forms.BoundField]:
        """Those about every change."""
        return [self[name] for name in ("reason", "word") if name in self.fields]

    @property
    def examples(self) -> Sequence[EditExample]:
        """A few messages before and after the edit, as far as there is one."""
        change = getattr(self, "change_asked", None)
        return of_waiting(self.about.first.messages, change.edit) if change and change.edit else []

    def clean(self) -> dict[str, Any]:
        """Read the change. Raises ValidationError."""
        given = super().clean() or self.cleaned_data
        change, by = given.get("change", ""), given.get("by")
        if change in ("later", "earlier") and not by:
            self.add_error("by", _("Write how much later or earlier."))
        if change == "move" and not given.get("to"):
            self.add_error("to", _("Choose the other topic."))
        if not self.dry_run and not self.only_shows:
            self._check_confirmation(given)
        edit = self._edit_from(given) if change == "edit" else None
        if self.errors:
            return given
        signs = {"later": 1, "earlier": -1}
        kinds = {"later": BulkKind.SHIFT, "earlier": BulkKind.SHIFT, "now": BulkKind.RUN_NOW}
        try:
            self.change_asked = WaitingChange(
                kind=kinds.get(change, change),
                by=timedelta(seconds=signs.get(change, 0) * (by or 0)),
                to=given["to"] if change == "move" else "",
                edit=edit,
            )
        except InvalidMessage as error:
            self.add_error(None, str(error))
        return given

    def _check_confirmation(self, given: dict[str, Any]) -> None:
        if not given.get("reason"):
            self.add_error("reason", _("Write a reason for those who look at it later."))
        if self.word_asked and given.get("word") != self.word_asked:
            self.add_error(
                "word",
                _("Type “%(word)s” here to confirm: the operation changes many messages.")
                % {"word": self.word_asked},
            )

    def _edit_from(self, given: dict[str, Any]) -> ArgumentEdit | None:
        try:
            return edit_from(self.task, given)
        except InvalidMessage as error:
            self.add_error("edit_argument", str(error))
            return None


def initial_of(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """The fields of the form for a repeated operation, as parameters of an address."""
    by = float(options.get("by", 0))
    shift = "earlier" if by < 0 else "later"
    change = {BulkKind.SHIFT: shift, BulkKind.RUN_NOW: "now"}.get(BulkKind(kind), kind)
    given = {"change": change, "by": f"{abs(by):g}" if by else "", "to": options.get("to", "")}
    return {name: value for name, value in given.items() if value}


def initial_from(query: QueryDict) -> dict[str, Any]:
    """What the form shows for these parameters."""
    given: dict[str, Any] = {name: query[name] for name in ("change", "to") if query.get(name)}
    with suppress(ValueError):
        by = float(query.get("by", ""))
        given |= {"by": by} if math.isfinite(by) else {}
    return given
