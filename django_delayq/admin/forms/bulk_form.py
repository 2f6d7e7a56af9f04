"""The form that starts a bulk operation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from django import forms
from django.http import QueryDict
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...archive.selection import Selection
from ...core.exceptions import InvalidMessage
from ...models import BulkKind
from ...operators.bulk import BulkPreview, preview, selected_dead_letters
from ...operators.edit_examples import EditExample, of_dead_letters
from ...operators.topic_permission import Topics
from ...tasks.argument_edit import ArgumentEdit
from .archive_form import query_of
from .edit_fields import EDIT_FIELDS, argument_field, edit_from, how_field, values_field
from .message_forms import DurationField


def reason_field() -> forms.CharField:
    """Why somebody orders an operation on many messages."""
    return forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text=gettext_lazy("Required, except for a dry run. Others read it later."),
    )


def word_field() -> forms.CharField:
    """The text that a person types to confirm a change of very many messages."""
    return forms.CharField(
        required=False, max_length=100, widget=forms.TextInput(attrs={"autocomplete": "off"})
    )


class BulkForm(forms.Form):
    """For one kind and one selection. A dry run needs neither a reason nor the word."""

    kind = forms.CharField(widget=forms.HiddenInput)
    query = forms.CharField(widget=forms.HiddenInput, required=False)
    """The filters of the archive."""
    token = forms.UUIDField(widget=forms.HiddenInput)
    delay = DurationField(
        label=gettext_lazy("Delay"),
        help_text=gettext_lazy("How long from now until they are due. Empty: at once."),
    )
    rate = forms.FloatField(
        label=gettext_lazy("Messages per second"),
        required=False,
        max_value=999_999_999,
        help_text=gettext_lazy(
            "Spreads the due times, so that the called systems are not flooded. Empty: no limit."
        ),
    )
    edit_argument = argument_field()
    edit_how = how_field()
    edit_values = values_field()
    reason = reason_field()
    word = word_field()

    edit: ArgumentEdit | None = None
    """What becomes of one argument, after is_valid()."""

    def __init__(
        self,
        kind: str,
        selection: Selection,
        data: QueryDict | None = None,
        initial: dict[str, Any] | None = None,
        *,
        topics: Topics = None,
        may_edit: bool = False,
    ) -> None:
        """`topics`: those that the user may see. Raises the errors of preview()."""
        self.kind_asked, self.selection, self._topics = kind, selection, topics
        known = {"kind": kind, "query": query_of(selection), "token": uuid4().hex}
        super().__init__(data, initial={**known, **(initial or {})}, label_suffix="")
        if BulkKind(kind) is not BulkKind.REPLAY:
            del self.fields["delay"], self.fields["rate"]
        self.may_edit = may_edit and BulkKind(kind) is BulkKind.REPLAY
        """Whether the user could edit an argument on the way, if all are of one task."""
        self.task = self._task_of_all() if self.may_edit else ""
        if not self.task:
            for name in EDIT_FIELDS:
                del self.fields[name]
        if self.about.word:
            self.fields["word"].label = _("Type “%(word)s” to confirm") % {"word": self.about.word}
        else:
            del self.fields["word"]
        self.dry_run = bool(data and data.get("dry_run"))
        self.only_shows = bool(data and data.get("show"))
        """Whether the examples of the edit are asked for, and nothing is ordered."""

    def _task_of_all(self) -> str:
        """The task of all messages; empty when there are several."""
        if self.selection.task or not self.selection.ids:
            return self.selection.task
        tasks = self.selection.rows().order_by().values_list("task", flat=True).distinct()[:2]
        return tasks[0] if len(tasks) == 1 else ""

    @property
    def edit_fields(self) -> list[forms.BoundField]:
        """Those about the edit."""
        return [self[name] for name in EDIT_FIELDS if name in self.fields]

    @property
    def other_fields(self) -> list[forms.BoundField]:
        """Those that are shown beside them."""
        return [field for field in self.visible_fields() if field.name not in EDIT_FIELDS]

    @cached_property
    def examples(self) -> Sequence[EditExample]:
        """A few messages before and after the edit, as far as there is one."""
        if self.edit is None:
            return []
        seen = None if self._topics is None else tuple(self._topics)
        rows = selected_dead_letters(self.selection.narrowed(topics=seen))
        return of_dead_letters(rows, self.edit)

    @cached_property
    def about(self) -> BulkPreview:
        """A preview of the messages, as of now."""
        return preview(self.kind_asked, self.selection, self._topics)

    def clean_rate(self) -> float | None:
        """Above 0, or None."""
        rate: float | None = self.cleaned_data["rate"]
        if rate is not None and not 0 < rate < math.inf:
            raise forms.ValidationError(
                _("Write a number above 0, or leave it empty for no limit.")
            )
        return rate

    def clean(self) -> dict[str, Any]:
        """Raises ValidationError."""
        given = super().clean() or self.cleaned_data
        if given.get("edit_argument"):
            try:
                self.edit = edit_from(self.task, given)
            except InvalidMessage as error:
                self.add_error("edit_argument", str(error))
        elif given.get("edit_values"):
            self.add_error("edit_argument", _("Write the name of the argument."))
        if self.dry_run or self.only_shows:
            return given
        if not given.get("reason"):
            self.add_error("reason", _("Write a reason for those who look at it later."))
        if self.about.word and given.get("word") != self.about.word:
            self.add_error(
                "word",
                _("Type “%(word)s” here to confirm: the operation changes many messages.")
                % {"word": self.about.word},
            )
        return given

    @property
    def options(self) -> dict[str, Any]:
        """For bulk.start(), after is_valid()."""
        given = self.cleaned_data
        options = {
            "reason": given.get("reason", ""),
            "dry_run": self.dry_run,
            "token": given["token"],
        }
        if BulkKind(self.kind_asked) is BulkKind.REPLAY:
            options |= {"delay": given.get("delay") or 0, "rate": given.get("rate")}
            options |= {"edit": self.edit}
        return options
