"""The filters of the archive: what an address says, as a form, as a Selection, and back as an
address."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.http import QueryDict
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...archive.selection import Selection
from ...core.exceptions import InvalidMessage
from ...core.present import word
from ...models import Final
from ...operators.topic_permission import Topics
from ...tasks import registry
from .message_forms import InstantField, offer_names

#: What `period` may say.
PERIODS = {
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}

#: What a list of them says.
PERIOD_WORDS = (
    ("", gettext_lazy("any time")),
    ("1h", gettext_lazy("the last hour")),
    ("24h", gettext_lazy("the last 24 hours")),
    ("7d", gettext_lazy("the last 7 days")),
    ("30d", gettext_lazy("the last 30 days")),
)


class ArchiveForm(forms.Form):
    """Of the address's parameters. After is_valid() `selection` is what they mean."""

    state = forms.ChoiceField(label=gettext_lazy("State"), required=False)
    open = forms.BooleanField(label=gettext_lazy("Open dead letters only"), required=False)
    topic = forms.ChoiceField(label=gettext_lazy("Topic"), required=False)
    task = forms.ChoiceField(label=gettext_lazy("Task"), required=False)
    error = forms.CharField(
        label=gettext_lazy("Error class or reason"), required=False, max_length=201, strip=False
    )
    """With = before it: exactly this."""
    period = forms.ChoiceField(label=gettext_lazy("Finished"), required=False, choices=PERIOD_WORDS)
    since = InstantField(label=gettext_lazy("From"), required=False)
    until = InstantField(label=gettext_lazy("To"), required=False)
    q = forms.CharField(label=gettext_lazy("Search"), required=False, max_length=500)

    selection: Selection

    def __init__(self, query: QueryDict, topics: Topics = None) -> None:
        """`topics`: those that the user may see."""
        super().__init__(query)
        self.query = query
        self.fields["q"].widget.attrs |= {
            "placeholder": "key:order:1042",
            "type": "search",
            "autocomplete": "off",
        }
        states = [("", _("any state")), *((value, word(value)) for value in Final.values)]
        self.fields["state"].choices = states  # type: ignore[attr-defined]
        self._offer("topic", _("All topics"), offered_topics(topics))
        self._offer("task", _("All tasks"), offered_tasks(topics))

    def clean(self) -> dict[str, Any]:
        """Read the whole selection."""
        given = super().clean() or self.cleaned_data
        if given.get("open") and given.get("state") not in ("", None, Final.DEAD):
            self.add_error(
                "open", _("Only dead letters can be open: choose the state dead, or any state.")
            )
        if self.errors:
            return given
        try:
            plain = {
                name: given[name]
                for name in ("state", "open", "topic", "task", "error", "since", "until")
            }
            if any("\0" in str(value) for value in plain.values()):
                raise InvalidMessage(_("A name cannot contain the character 0."))
            if given["period"] and not (given["since"] or given["until"]):
                plain["since"] = timezone.now() - PERIODS[given["period"]]
            text = [
                *self.query.getlist("id"),
                *(part for part in self.query.get("ids", "").split(",") if part.strip()),
            ]
            search = search_parts(given["q"].strip())
            try:
                ids = tuple(dict.fromkeys(int(part) for part in text))
            except ValueError:
                ids = (0,)
            if any(not 0 < pk < 2**63 for pk in ids):
                raise InvalidMessage(_("ids must be row numbers, separated by commas."))
            self.selection = Selection(**{**plain, **search, "ids": ids})
        except InvalidMessage as error:
            self.add_error(None, str(error))
        return given

    def _offer(self, name: str, anything: str, names: list[str]) -> None:
        """Offer what the code declares, and the value in the address: the archive may have topics
        and tasks that the code no longer declares."""
        chosen = self.query.get(name, "")
        more = [chosen] if chosen and chosen not in names else []
        offer_names(self, name, [*names, *more], anything)


def offered_topics(topics: Topics) -> list[str]:
    """The declared topics among these."""
    known = registry.known_topics()
    return sorted(known if topics is None else known & topics)


def offered_tasks(topics: Topics) -> list[str]:
    """The declared tasks of these topics."""
    return [
        name
        for name, task in sorted(registry.by_name.items())
        if topics is None or task.options.topic in topics
    ]


def search_parts(text: str) -> dict[str, str]:
    """What the search box means, as parts of a Selection. Raises InvalidMessage that says what it
    takes."""
    if not text:
        return {}
    prefix, colon, value = text.partition(":")
    if prefix == "key" and value.rstrip("*"):
        return {"key_prefix": value[:-1]} if value.endswith("*") else {"key": value}
    if prefix.startswith("args.") and len(prefix) > len("args.") and colon:
        name = prefix if prefix.split(".")[1].isdecimal() else prefix.removeprefix("args.")
        return {"argument": name, "value": value.strip()}
    try:
        return {"message_id": UUID(text).hex}
    except ValueError:
        raise InvalidMessage(
            _(
                "%(text)s cannot be searched for. Write a message id (32 hexadecimal "
                "digits), key:order:1042 for a key, key:order:10* for its beginning, or "
                "args.order_id:1042 for an argument; the last two inside a period."
            )
            % {"text": ascii(text[:80])}
        ) from None


def selection_from(query: QueryDict) -> Selection:
    """What the parameters of an address mean. Raises InvalidMessage.

    state, open, topic, task, error, period or since and until, q, and ids (with commas) or id
    (repeated) of rows.
    """
    form = ArchiveForm(query)
    if not form.is_valid():
        words = [f"{form.fields[name].label}: {line}" if name in form.fields else str(line)
                 for name, lines in form.errors.items() for line in lines]  # fmt: skip
        raise InvalidMessage(" ".join(words))
    return form.selection


def query_of(selection: Selection) -> str:
    """The address's parameters that mean this selection."""
    name = selection.argument
    if name:
        q = f"{name if name.startswith('args.') else f'args.{name}'}:{selection.value}"
    else:
        q = f"key:{selection.key}" if selection.key else selection.message_id
        q = f"key:{selection.key_prefix}*" if selection.key_prefix else q
    zone = timezone.get_default_timezone()
    values = {
        "state": selection.state,
        "topic": selection.topic,
        "task": selection.task,
        "error": selection.error,
        "open": "on" if selection.open else "",
        "since": selection.since and selection.since.astimezone(zone).isoformat(),
        "until": selection.until and selection.until.astimezone(zone).isoformat(),
        "ids": ",".join(map(str, selection.ids)),
        "q": q,
    }
    query = QueryDict(mutable=True)
    query.update({name: value for name, value in values.items() if value})
    return query.urlencode(safe=",:")
