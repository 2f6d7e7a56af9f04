"""The forms of the pages.

Start with message_forms.py.
"""

from __future__ import annotations

__all__ = ["archive_form", "bulk_form", "message_forms", "waiting_form"]
