"""Enqueues a message from a form that is made of the task's signature."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...core.exceptions import (
    DelayQError,
    DuplicateMessage,
    InvalidMessage,
    NotPermitted,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)
from ...core.message import Priority, check_key, key_id, new_id, parse_id
from ...operators import message_search, operations
from ...operators.topic_permission import permitted_topics
from ...store import get_store
from ...tasks import registry
from ...tasks.arguments import read_json
from ...tasks.task import Task
from ..forms.message_forms import ArgumentsForm, DurationField, WhenForm, field_errors
from ..site import register_page, show, url
from .find_page import result_url

#: A form that was sent is remembered for so long.
FORM_KEPT_MS = 3_600_000


class ScheduleForm(WhenForm):
    """When, and the options of one message."""

    key = forms.CharField(
        label=gettext_lazy("Key"),
        required=False,
        strip=False,
        help_text=gettext_lazy(
            "Identifies the message inside its topic. At most one live message can "
            "have the same key."
        ),
    )
    on_duplicate = forms.ChoiceField(
        label=gettext_lazy("When a message with this key is live"),
        choices=(
            ("raise", gettext_lazy("refuse")),
            ("keep", gettext_lazy("keep that one")),
            ("replace", gettext_lazy("replace it")),
            ("extend", gettext_lazy("replace it, at the later of the two due times")),
            ("earliest", gettext_lazy("replace it, at the earlier of the two due times")),
        ),
    )
    priority = forms.ChoiceField(
        label=gettext_lazy("Priority"),
        choices=(
            ("high", gettext_lazy("high")),
            ("normal", gettext_lazy("normal")),
            ("low", gettext_lazy("low")),
        ),
    )
    expires = DurationField(
        label=gettext_lazy("Expires"),
        help_text=gettext_lazy(
            "The message expires if it has not started this long after its due time. "
            "Empty: the task's default."
        ),
    )
    durable = forms.BooleanField(
        label=gettext_lazy("Durable"),
        required=False,
        help_text=gettext_lazy("The database also keeps the message until it has ended."),
    )
    headers = forms.CharField(
        label=gettext_lazy("Headers"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 1, "cols": 80, "spellcheck": "false"}),
        help_text=gettext_lazy(
            'For people and tracing: a JSON object of texts, such as {"ticket": "OPS-7"}.'
        ),
    )
    id = forms.CharField(widget=forms.HiddenInput)

    def __init__(self, task: Task[Any, Any], data: Any = None) -> None:
        options = task.options
        initial = {
            "on_duplicate": options.on_duplicate,
            "priority": options.priority.name.lower(),
            "durable": options.durable,
            "id": new_id().hex(),
        }
        super().__init__(data, initial=initial)
        self.task = task

    def clean_id(self) -> str:
        """Made when the page was opened. It identifies this form, and its message if that has no
        key."""
        with field_errors():
            return parse_id(self.cleaned_data["id"]).hex()

    def clean_key(self) -> str | None:
        """None when nothing is written."""
        with field_errors():
            return check_key(self.cleaned_data["key"] or None)

    def clean_headers(self) -> dict[str, str]:
        """Texts by their names."""
        text: str = self.cleaned_data["headers"]
        with field_errors():
            headers = read_json(text) if text.strip() else {}
        if not isinstance(headers, dict) or not all(
            isinstance(value, str) for value in headers.values()
        ):
            raise forms.ValidationError(_("Headers are a JSON object of texts."))
        return headers

    def options(self) -> dict[str, Any]:
        """For using()."""
        given = self.cleaned_data
        when = {"due_at": given["at"]} if given["at"] else {"delay": given["delay"]}
        # The id of a message with a key follows from the key.
        identity = {"key": given["key"]} if given["key"] else {"id": given["id"]}
        expires = {} if given["expires"] is None else {"expires": given["expires"]}
        return {
            **when,
            **identity,
            **expires,
            "on_duplicate": given["on_duplicate"],
            "durable": given["durable"],
            "headers": given["headers"],
            "priority": Priority.parse(given["priority"]),
        }


@register_page(
    "schedule/", "schedule", "edit_message", "view_payload", methods=("GET", "HEAD", "POST")
)
def schedule_view(request: HttpRequest) -> HttpResponse:
    """Choose a task, fill in its form, enqueue."""
    name = request.GET.get("task", "")
    task = registry.by_name.get(name)
    topics = permitted_topics(request.user, "edit_message", "view_payload")
    if task is None or (topics is not None and task.options.topic not in topics):
        if name:
            words = _("No task is named %(name)s. It may have been removed or renamed.") % {
                "name": repr(name[:200])
            }
            return show(request, "not_there.html", _("No such task"), status=404, words=words)
        names = [
            name
            for name, task in sorted(registry.by_name.items())
            if topics is None or task.options.topic in topics
        ]
        return show(request, "schedule.html", _("Schedule"), names=names)
    if request.method != "POST":
        return _page(request, task, ScheduleForm(task), ArgumentsForm(name))
    form, arguments = ScheduleForm(task, request.POST), ArgumentsForm(name, None, request.POST)
    if not (form.is_valid() & arguments.is_valid()):
        return _page(request, task, form, arguments)
    if not form.cleaned_data["key"]:
        try:
            form.cleaned_data["key"] = task.key_of(*arguments.arguments())
        except InvalidMessage as error:
            form.add_error("key", str(error))
            return _page(request, task, form, arguments)
    return _send(request, task, form, arguments)


def _send(
    request: HttpRequest, task: Task[Any, Any], form: ScheduleForm, arguments: ArgumentsForm
) -> HttpResponse:
    """Enqueue, unless this form was sent before. A form that was refused may be sent again. A form
    whose outcome is unknown may not."""
    acquired: bool | None = None
    try:
        acquired = _acquire_lock(form)
        if acquired is False:
            return _sent_before(request, task, form, arguments)
        handle = operations.schedule(
            request.user, task.name, arguments.arguments(), **form.options()
        )
    except OutcomeUnknown as error:
        advice = _(
            "The message may have been enqueued. Check the topic and the archive "
            "before you enqueue it again."
        )
        form.add_error(None, f"{error} {advice}")
        return _page(request, task, form, arguments, unknown=True)
    except DelayQError as error:
        if acquired:
            with suppress(StoreError):  # nothing was enqueued: the same form may come again
                get_store().workers.release_lock(_lock_name(form))
        if isinstance(error, NotPermitted):
            raise
        field, live = None, ""
        if isinstance(error, DuplicateMessage):
            field = "key" if form.cleaned_data["key"] else None
            message_id = _message_id(task, form)
            live = url(request, "message", topic=task.options.topic, message_id=message_id)
        form.add_error(field, str(error))
        return _page(request, task, form, arguments, live)
    outcomes = {
        "kept": _(
            "A message with this key is already live. It was kept, and nothing was enqueued."
        ),
        "follows": _("A message with this key is running. The new message starts after it."),
        "replaced": _("The message was enqueued. It replaced the message with the same key."),
    }
    messages.success(request, outcomes.get(handle.outcome, _("The message was enqueued.")))
    return redirect(f"{url(request, 'message', topic=handle.topic, message_id=handle.id)}?moment=1")


def _message_id(task: Task[Any, Any], form: ScheduleForm) -> str:
    key = form.cleaned_data["key"]
    return key_id(task.options.topic, key).hex() if key else str(form.cleaned_data["id"])


# A form counts once


def _acquire_lock(form: ScheduleForm) -> bool | None:
    """Whether this form is sent for the first time. None while Redis is away: then the message goes
    to SQL under its id, or nowhere. Raises OutcomeUnknown."""
    if not form.cleaned_data["key"] and message_search.archived_row(form.cleaned_data["id"]):
        return False
    try:
        return get_store().workers.acquire_lock(_lock_name(form), FORM_KEPT_MS)
    except StoreUnavailable:
        return None


def _lock_name(form: ScheduleForm) -> str:
    return f"form:{form.cleaned_data['id']}"


def _sent_before(
    request: HttpRequest, task: Task[Any, Any], form: ScheduleForm, arguments: ArgumentsForm
) -> HttpResponse:
    """Redirect to its message, or explain that it was not found."""
    hit = None
    with suppress(StoreError):
        hit = message_search.by_id(_message_id(task, form), task.options.topic)
    if hit is None:
        form.add_error(None, _("This form was already sent. Nothing was enqueued this time."))
        return _page(request, task, form, arguments, unknown=True)
    words = _("This form was already sent. Nothing was enqueued this time.")
    newest = _("This is the newest message with its id or key.")
    messages.warning(request, f"{words} {newest}")
    return redirect(result_url(request, hit))


def _page(
    request: HttpRequest,
    task: Task[Any, Any],
    form: ScheduleForm,
    arguments: ArgumentsForm,
    live: str = "",
    *,
    unknown: bool = False,
) -> HttpResponse:
    return show(
        request,
        "schedule.html",
        _("Schedule %(task)s") % {"task": task.name},
        # Its name and not the task: a template calls whatever can be called.
        task=task.name,
        about=(task.__doc__ or "").strip().partition("\n")[0],
        topic=task.options.topic,
        form=form,
        arguments=arguments,
        live=live,
        unknown=unknown,
    )
