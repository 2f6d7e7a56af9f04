"""The HTTP API: enqueue, consume with leases, inspect and operate, for programs in any language.

Off until a project includes its addresses: `path("delayq/api/", include("django_delayq.integrations.api.urls"))`.
Needs the extra `api` (django-ninja). May import what integrations may. Start with urls.py.
"""  # noqa: E501 - the line to copy

from __future__ import annotations

__all__ = [
    "urls", "operations_api", "router", "problems", "strict_json", "bearer", "idempotency",
    "documents", "sending", "lease_tokens", "consuming", "arrivals", "reading", "controlling",
]  # fmt: skip
