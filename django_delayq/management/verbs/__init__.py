"""The verbs of `manage.py delayq`: one module each, loaded when the verb is used.

A module here is a verb: its first line is the line of `delayq --help`, its docstring is the text of
`delayq VERB --help`, and its class `Command` does the work. A new verb needs nothing else.
"""

from __future__ import annotations
