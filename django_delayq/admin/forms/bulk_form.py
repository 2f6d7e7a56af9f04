"""The form that starts a bulk operation."""

from __future__ import annotations

import math
from typing import Any
from uuid import uuid4

from django import forms
from django.http import QueryDict
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...archive.selection import Selection
from ...models import BulkKind
from ...operators.bulk import BulkPreview, preview
from ...operators.topic_permission import Topics
from .archive_form import query_of


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
    """What has to be typed before very many messages are changed."""
    return forms.CharField(
        required=False, max_length=100, widget=forms.TextInput(attrs={"autocomplete": "off"})
    )


class BulkForm(forms.Form):
    """For one kind and one selection. A dry run needs neither a reason nor the word."""

    kind = forms.CharField(widget=forms.HiddenInput)
    query = forms.CharField(widget=forms.HiddenInput, required=False)
    """The filters of the archive."""
    token = forms.UUIDField(widget=forms.HiddenInput)
    delay = forms.FloatField(
        label=gettext_lazy("Delay in seconds"),
        required=False,
        min_value=0,
        max_value=3660 * 86400,
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
    reason = reason_field()
    word = word_field()

    def __init__(
        self,
        kind: str,
        selection: Selection,
        data: QueryDict | None = None,
        *,
        topics: Topics = None,
    ) -> None:
        """`topics`: those that the user may see. Raises the errors of preview()."""
        self.kind_asked, self.selection, self._topics = kind, selection, topics
        initial = {"kind": kind, "query": query_of(selection), "token": uuid4().hex}
        super().__init__(data, initial=initial, label_suffix="")
        if BulkKind(kind) is not BulkKind.REPLAY:
            del self.fields["delay"], self.fields["rate"]
        if self.about.word:
            self.fields["word"].label = _("Type “%(word)s” to confirm") % {"word": self.about.word}
        else:
            del self.fields["word"]
        self.dry_run = bool(data and data.get("dry_run"))

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
        if self.dry_run:
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
        return options
