"""What a project does with messages: enqueue, get, cancel, reschedule, edit, and act on topics.

Stands on the outbox and the tasks. An enqueue goes task.py -> enqueue.py -> tasks/builder.py ->
sender.py -> store/. Inside a transaction on_commit.py keeps it until the commit. Start with
enqueue.py; changes.py has cancel, reschedule and edit.
"""

from __future__ import annotations
