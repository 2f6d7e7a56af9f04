"""The forms of the pages.

Start with message_forms.py.
"""

from __future__ import annotations

__all__ = ["archive_form", "bulk_form", "edit_fields", "message_forms", "waiting_form"]
