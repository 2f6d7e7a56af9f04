"""The README says what is true: its code runs, its size is bounded, its links exist."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_readme_has_at_most_120_lines() -> None:
    assert len(README.splitlines()) <= 120


def test_its_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_its_links_lead_somewhere_on_the_page_of_the_package_index() -> None:
    command = [sys.executable, "-m", "hatchling", "metadata", "readme"]
    readme = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"\]\(([^)]+)\)", readme)
    assert len(targets) > 8
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_its_settings_are_accepted() -> None:
    from django_delayq.core.conf import parse_settings

    namespace: dict[str, Any] = {}
    exec(blocks(README)[0], namespace)
    assert namespace["INSTALLED_APPS"][-1] == "django_delayq"
    assert parse_settings(namespace["DELAYQ"]).redis.startswith("redis://")


def test_the_settings_of_the_docs_are_accepted() -> None:
    from django_delayq.core.conf import parse_settings

    namespace: dict[str, Any] = {}
    exec(blocks((ROOT / "docs/reference/settings.md").read_text())[0], namespace)
    assert parse_settings(namespace["DELAYQ"]).topics["orders"].weight == 3


@pytest.mark.django_db(transaction=True)
def test_its_task_closes_an_unpaid_order_and_a_cancelled_one_stays_open(delayq: Any) -> None:
    from django.db import transaction
    from shop.models import Order, Product

    from django_delayq import topic_stats

    product = Product.objects.create(name="Lamp", slug="lamp", price=1)
    namespace: dict[str, Any] = {
        "Order": Order,
        "transaction": transaction,
        "product": product,
        "timedelta": timedelta,
    }
    namespace["__name__"] = "readme.tasks"
    _, task, view = blocks(README)
    exec(task, namespace)
    exec(view, namespace)
    assert topic_stats("orders").delayed == 0, "the last line of the example cancels the message"

    namespace["close_unpaid_order"](namespace["order"].pk)
    namespace["order"].refresh_from_db()
    assert namespace["order"].state == "paid"
    Order.objects.update(state="pending")
    namespace["close_unpaid_order"](namespace["order"].pk)
    namespace["order"].refresh_from_db()
    assert namespace["order"].state == "closed"
