"""What an edit would make of a few messages: their arguments before and after, or why they are left
out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ..archive.row_arguments import read_arguments
from ..archive.selection import Rows
from ..core.exceptions import InvalidMessage
from ..core.message import Message
from ..tasks.argument_edit import NOTHING_TO_EDIT, ArgumentEdit
from ..tasks.arguments import Arguments, in_one_line
from ..tasks.redaction import shown_arguments

#: How many examples there are.
EXAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class EditExample:
    """One message, for those who may see arguments."""

    message_id: str
    """32 hexadecimal digits."""
    topic: str
    row: int | None
    """The row of the archive; None for a live message."""
    before: str = ""
    after: str = ""
    problem: str = ""
    """Why it would be left out; then there is no `after`."""


def of_dead_letters(rows: Rows, edit: ArgumentEdit) -> Sequence[EditExample]:
    """The newest few of these rows of the archive."""
    columns = ("pk", "message_id", "topic", "body")
    examples = []
    for row in rows.filter(task=edit.task).order_by("-finished_at").only(*columns)[:EXAMPLES]:
        known = {"message_id": row.message_id.hex, "topic": row.topic, "row": row.pk}
        try:
            found = read_arguments(row.message_id, row.body)
        except (msgspec.MsgspecError, UnicodeError):
            examples.append(EditExample(**known, problem="undecodable"))
            continue
        if found.redaction:
            examples.append(EditExample(**known, problem="redacted"))
        else:
            examples.append(_example(known, edit, found.arguments))
    return examples


def of_waiting(messages: Sequence[Message], edit: ArgumentEdit) -> Sequence[EditExample]:
    """The first few of these messages."""
    meant = [message for message in messages if message.task == edit.task][:EXAMPLES]
    return [
        _example(
            {"message_id": message.id, "topic": message.topic, "row": None},
            edit,
            (list(message.args), dict(message.kwargs)),
        )
        for message in meant
    ]


def _example(known: dict[str, object], edit: ArgumentEdit, arguments: Arguments) -> EditExample:
    topic = str(known["topic"])

    def seen(these: Arguments) -> str:
        shown = shown_arguments(topic, edit.task, *these)
        return in_one_line(shown.args, shown.kwargs)

    problem, after = "", None
    try:
        after = edit.edited(topic, arguments)
    except InvalidMessage as error:
        problem = str(error)
    else:
        problem = "" if after else NOTHING_TO_EDIT
    return EditExample(
        **known,  # type: ignore[arg-type]
        before=seen(arguments),
        after=seen(after) if after else "",
        problem=problem,
    )
