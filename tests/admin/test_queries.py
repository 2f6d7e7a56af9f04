"""How many queries each page takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_delayq.models import Dashboard
from tests.admin.browser import address
from tests.admin.test_csp import shown_pages
from tests.admin.world import World

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("delayq"),
    pytest.mark.databases,
]

#: Queries of one look. Four of them are Django's: the session, the user, and the permissions of the
#: user and of the groups.
MOST = 6
ALL = [codename for codename, _ in Dashboard._meta.permissions]
#: Without downloads, which record what they send.
PAGES = {page.name: page for page in shown_pages()}
#: With filters.
ASKED: dict[str, list[dict[str, str]]] = {
    "changelist": [{"sort": "lag"}, {"part": "1"}],
    "topic": [{"by": "task"}, {"in": "database"}, {"from": "2030-01-01T00:00"}],
    "message": [{"edit": "1"}],
    "waiting": [
        {"topic": "orders"},
        {"until": "2100-01-01T00:00Z"},
        {"topic": "orders", "key_prefix": "order:", "count": "all"},
    ],
    "dead_letters": [{"topic": "modes"}, {"task": "tests.app.tasks.act", "error": "=TypeError"}],
    "archive": [
        {"period": "24h"},
        {"state": "dead"},
        {"topic": "orders"},
        {"task": "tests.app.tasks.act"},
        {"state": "dead", "open": "on", "topic": "modes"},
        {"q": "args.order_id:1042", "period": "24h"},
        {"q": "key:order:1042"},
    ],
    "archived": [{"edit": "1"}],
    "statistics": [{"period": "90d"}, {"topic": "orders"}],
    "bulk_new": [{"kind": kind, "topic": "modes", "open": "on"} for kind in ("replay", "discard")]
    + [{"kind": "purge", "topic": "orders"}],
    "schedule": [{"task": "tests.app.tasks.close_order"}],
    "running": [{"topic": "orders"}],
    "operator_actions": [{"topic": "orders"}],
    "find": [{"q": word} for word in ("nobody", "1042", "args.order_id:1042")],
}


def rule(user: Any, topic: str, action: str) -> bool:
    """TOPIC_PERMISSION."""
    return topic != "hidden"


@pytest.mark.parametrize(
    ("name", "asked"),
    [(name, asked) for name in PAGES for asked in [{}, *ASKED.get(name, [])]],
    ids=str,
)
@pytest.mark.parametrize("limited", [False, True], ids=["all topics", "some topics"])
def test_a_page_takes_few_queries(
    limited: bool, name: str, asked: dict[str, str], as_user: Callable[..., Client], world: World,
    settings: Any,
) -> None:  # fmt: skip
    if limited:
        settings.DELAYQ = {**settings.DELAYQ, "TOPIC_PERMISSION": f"{__name__}.rule"}
    world.put_aside()
    world.die()
    client = as_user(*ALL)
    there = address(name, **world.fill(PAGES[name]))
    client.get(there, asked)  # the figures of all pages are kept for some seconds
    with CaptureQueriesContext(connection) as queries:
        answer: Any = client.get(there, asked)
        b"".join(answer)
    assert answer.status_code == 200
    # The topics of the outbox are asked for, to know which of them the user may see.
    assert len(queries) <= MOST + limited, "\n".join(query["sql"] for query in queries)
