"""Forms that several pages share: the arguments of a task, and instants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.forms.utils import from_current_timezone
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.dateparse import parse_datetime
from django.utils.functional import cached_property, lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...core.conf import get_settings
from ...core.exceptions import InvalidArguments, InvalidMessage
from ...core.message import Body, encode_body
from ...core.times import MAX_DELAY_MS, aware, duration_ms, local
from ...tasks import redaction, registry
from ...tasks.arguments import Arguments, Parameter, layout, write_json

#: The value of a parameter that gets its default.
NOT_GIVEN = object()

_PREFIX = "argument_"
_SHAPE = "argument-shape"


@contextmanager
def field_errors() -> Iterator[None]:
    """Show an InvalidMessage at the field."""
    try:
        yield
    except InvalidMessage as error:
        raise forms.ValidationError(str(error)) from None


class ArgumentField(forms.CharField):
    """One parameter. Its value is the parsed text, or NOT_GIVEN."""

    def __init__(self, parameter: Parameter, text: str) -> None:
        rows = min(20, max(1, text.count("\n") + 1, len(text) // 80))
        super().__init__(
            label=("*" if parameter.is_array else "**" if parameter.is_object else "")
            + parameter.name,
            required=False,
            strip=False,
            initial=text,
            help_text=_help(parameter),
            widget=forms.Textarea(
                attrs={"rows": rows, "cols": 80, "spellcheck": "false", "autocomplete": "off"}
            ),
        )
        self.parameter = parameter
        self.widget.attrs["aria-required"] = "true" if parameter.required else "false"

    def clean(self, value: Any) -> Any:
        """Raises ValidationError."""
        text = super().clean(value)
        parameter = self.parameter
        if not text.strip():
            if parameter.required:
                raise forms.ValidationError(
                    _('Write a value; for an empty text "".')
                    if parameter.is_text
                    else _("Write a value.")
                )
            return NOT_GIVEN
        with field_errors():
            read = parameter.read(text)
            content = (
                Body(read)
                if parameter.is_array
                else Body(kwargs=read)
                if parameter.is_object
                else Body([read])
            )
            encode_body(content, get_settings().body_limit)
        return read


class ArgumentsForm(forms.Form):
    """The arguments of a task: one field per parameter. Two raw fields when the task is unknown or
    its signature refuses `given`.

    Positional arguments of `given` stay positional. What is hidden of them, for messages of
    `topic`, is not shown; it stays as it is where the mark in its place stays. Use arguments()
    after is_valid().
    """

    template_name = "django_delayq/_arguments_form.html"

    def __init__(
        self, task: str, given: Arguments | None = None, data: Any = None, *, topic: str = ""
    ) -> None:
        super().__init__(data)
        self.task = task
        self._true = self.layout = layout(task, given)
        if given is not None:
            seen = redaction.shown_arguments(topic, task, *given)
            self.layout = layout(task, (seen.args, seen.kwargs))
        for parameter in self.layout.parameters:
            value = self.layout.given.get(parameter.name, NOT_GIVEN)
            nothing = value is NOT_GIVEN or (
                (parameter.is_array or parameter.is_object) and not value
            )
            self.fields[_PREFIX + parameter.name] = ArgumentField(
                parameter, "" if nothing else parameter.write(value)
            )
        self.fields[_SHAPE] = forms.CharField(
            widget=forms.HiddenInput, required=False, initial=self._shape
        )

    @property
    def is_raw(self) -> bool:
        """Whether it has the two raw fields."""
        return self.layout.is_raw

    @property
    def is_known(self) -> bool:
        """Whether a task of this name is declared here."""
        return self.task in registry.by_name

    def arguments(self) -> Arguments:
        """The arguments, after is_valid()."""
        return self.cleaned_data["arguments"]

    def clean(self) -> dict[str, Any]:
        """Check all arguments together: the signature of the task and the size limit of a body."""
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get(_SHAPE) != self._shape:
            self.add_error(
                None,
                _(
                    "The task or its arguments have changed since this page was opened. Check"
                    " them and send the form again."
                ),
            )
        if self.errors:
            return cleaned
        names = [parameter.name for parameter in self.layout.parameters]
        values = {
            name: cleaned[_PREFIX + name]
            for name in names
            if cleaned[_PREFIX + name] is not NOT_GIVEN
        }
        try:
            seen, true = self.layout.given, self._true.given
            values = {
                name: redaction.restored(value, seen.get(name), true.get(name))
                for name, value in values.items()
            }
            cleaned["arguments"] = args, kwargs = self.layout.arguments(values)
            if self.is_known:
                registry.by_name[self.task].definition.stored(args, kwargs)
            encode_body(Body(list(args), dict(kwargs)), get_settings().body_limit)
        except InvalidArguments as error:
            named = error.parameter in names
            self.add_error(_PREFIX + error.parameter if named else None, str(error))
        except InvalidMessage as error:
            self.add_error(None, str(error))
        return cleaned

    @cached_property
    def _shape(self) -> str:
        """A hash of the fields and their first values. It refuses a form from before a deploy or
        another edit."""
        shown = [
            (parameter.name, str(parameter.kind), parameter.is_text)
            for parameter in self.layout.parameters
        ]
        content = write_json([shown, self.layout.by_position, self._true.given])
        # Keyed: nobody can try values of a hidden argument.
        return salted_hmac("django_delayq.shape", content, algorithm="sha256").hexdigest()[:24]


def _help(parameter: Parameter) -> str:
    """The help of a field, in one line."""
    if parameter.is_array:
        return _('Further positional arguments as a JSON array, such as [1, "two"].')
    if parameter.is_object:
        return _('Further named arguments as a JSON object, such as {"name": 1}.')
    kind = (
        _("Plain text. Text in double quotes is read as JSON.")
        if parameter.is_text
        else _('JSON. Quote text: "abc".')
    )
    words = [f"{parameter.annotation}.", kind] if parameter.annotation else [kind]
    if parameter.default is not None:
        words.append(_("If empty: %(default)s.") % {"default": parameter.default})
    return " ".join(words)


# Times

_UNITS = (
    ("1", gettext_lazy("seconds")),
    ("60", gettext_lazy("minutes")),
    ("3600", gettext_lazy("hours")),
    ("86400", gettext_lazy("days")),
)


class InstantField(forms.CharField):
    """An instant in ISO 8601, in the project's time zone unless it names another. Its value is an
    aware datetime, or None. `future`: it has to lie ahead."""

    widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"})

    def __init__(self, *, future: bool = False, **options: Any) -> None:
        super().__init__(max_length=40, **options)
        self.future = future

    def clean(self, value: Any) -> datetime | None:
        """Raises ValidationError."""
        text = str(super().clean(value)).strip()
        if not text:
            return None
        try:
            when = parse_datetime(text)
            if when is None:
                raise ValueError
            if not self.future:
                when = timezone.make_aware(when) if timezone.is_naive(when) else when
                when.astimezone(timezone.get_default_timezone())  # no zone has all of the year 1
                return when
            when = aware(from_current_timezone(when))
            now = datetime.now(tz=timezone.get_default_timezone())
            if when <= now:
                raise forms.ValidationError(_("This time is in the past."))
            if when > now + timedelta(milliseconds=MAX_DELAY_MS):
                raise forms.ValidationError(_("This time is more than ten years ahead."))
        except (ValueError, OverflowError):
            raise forms.ValidationError(
                _("Write a date and a time, such as 2026-11-20 09:00.")
            ) from None
        return when

    def prepare_value(self, value: Any) -> Any:
        """The value for the browser's own field: in the project's time zone, to the second."""
        try:
            when = parse_datetime(value) if isinstance(value, str) else value
            return f"{local(aware(when)):%Y-%m-%dT%H:%M:%S}" if when else value
        except (ValueError, OverflowError):
            return value


#: More names are no list to choose from: one writes the name.
MOST_CHOICES = 200


class NameField(forms.CharField):
    """One of very many names: one writes it."""

    def __init__(self, names: Iterable[str], **options: Any) -> None:
        super().__init__(**options)
        self.names = frozenset(names)

    def validate(self, value: str) -> None:
        """Refuse other names, as a ChoiceField does."""
        super().validate(value)
        if value and value not in self.names:
            text = forms.ChoiceField.default_error_messages["invalid_choice"]
            raise forms.ValidationError(text, code="invalid_choice", params={"value": value})


def offer_names(form: forms.Form, name: str, names: Sequence[str], nothing: str) -> None:
    """Let a field of the form take one of these names. `nothing`: what it says when it is empty."""
    field: Any = form.fields[name]
    if len(names) <= MOST_CHOICES:
        field.choices = [("", nothing), *((one, one) for one in names)]
        return
    attrs = {"placeholder": nothing, "autocomplete": "off", "spellcheck": "false"}
    form.fields[name] = NameField(
        names,
        label=field.label,
        required=field.required,
        help_text=field.help_text,
        widget=forms.TextInput(attrs=attrs),
    )


class DurationField(forms.MultiValueField):
    """A number and its unit. Its value is seconds, or None when no number is given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            (forms.FloatField(required=False, min_value=0), forms.ChoiceField(choices=_UNITS)),
            required=False,
            require_all_fields=False,
            widget=_DurationInput(),
            **options,
        )

    def compress(self, values: Any) -> float | None:
        """Number times unit. Raises ValidationError beyond ten years."""
        if not values or values[0] is None:
            return None
        seconds = float(values[0]) * int(values[1] or 1)
        with field_errors():
            duration_ms(seconds)
        return seconds


class _DurationInput(forms.MultiWidget):
    template_name = "django_delayq/_duration.html"
    use_fieldset = False

    def __init__(self) -> None:
        super().__init__(
            {
                "": forms.NumberInput(attrs={"min": "0", "step": "any"}),
                "unit": forms.Select(choices=_UNITS, attrs={"aria-label": gettext_lazy("Unit")}),
            }
        )

    def decompress(self, value: float | None) -> list[Any]:
        """Minutes to begin with; seconds as they are."""
        return [None, "60"] if value is None else [f"{value:g}", "1"]

    def id_for_label(self, id_: str) -> str:
        """The number."""
        return f"{id_}_0"


def clock_in_words() -> str:
    """The time zone of the form, and the time there."""
    zone = timezone.get_current_timezone()
    return _("Time zone %(zone)s. The time there is now %(now)s.") % {
        "zone": str(zone),
        "now": datetime.now(tz=zone).strftime("%Y-%m-%d %H:%M:%S"),
    }


#: Computed anew whenever a form is shown.
_CLOCK = lazy(clock_in_words, str)()


class WhenForm(forms.Form):
    """A delay or an instant: exactly one. Use seconds or due_at after is_valid()."""

    delay = DurationField(label=gettext_lazy("Delay from now"))
    at = InstantField(
        label=gettext_lazy("Or due at"), required=False, future=True, help_text=_CLOCK
    )

    def clean(self) -> dict[str, Any]:
        """Exactly one of the two."""
        cleaned = super().clean() or self.cleaned_data
        if not self.errors and (cleaned.get("delay") is None) == (cleaned.get("at") is None):
            self.add_error("delay", _("Fill in one of the two: a delay or a time."))
        return cleaned


class PauseForm(forms.Form):
    """Why a topic is paused, and until when."""

    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=500)
    hold = forms.ChoiceField(
        label=gettext_lazy("Until"),
        choices=(
            ("", gettext_lazy("somebody resumes it")),
            ("600", gettext_lazy("in 10 minutes")),
            ("900", gettext_lazy("in 15 minutes")),
            ("3600", gettext_lazy("in 1 hour")),
            ("28800", gettext_lazy("in 8 hours")),
            ("at", gettext_lazy("the time below")),
        ),
        required=False,
    )
    at = InstantField(label=gettext_lazy("Time"), required=False, future=True, help_text=_CLOCK)

    def clean(self) -> dict[str, Any]:
        """A written time counts without the choice “the time below”, but not beside another
        choice."""
        cleaned = super().clean() or self.cleaned_data
        hold, at = cleaned.get("hold"), cleaned.get("at")
        if not self.errors and hold == "at" and at is None:
            self.add_error("at", _("Write the time."))
        if not self.errors and hold not in ("", "at") and at is not None:
            self.add_error("at", _("Choose “the time below” for this time, or leave it empty."))
        return cleaned

    def until(self) -> datetime | None:
        """When it ends by itself."""
        hold: str = self.cleaned_data["hold"]
        if hold in ("", "at"):
            return self.cleaned_data["at"]
        return datetime.now(tz=timezone.get_default_timezone()) + timedelta(seconds=int(hold))


class CancelForm(forms.Form):
    """Why a message is cancelled."""

    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=500)
