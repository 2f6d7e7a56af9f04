"""Who may see and change which topics: every page, list, search, file and bulk operation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, RequestFactory

from django_delayq.admin import site
from django_delayq.archive.selection import Selection
from django_delayq.checks import check_settings
from django_delayq.core.exceptions import MessageNotFound, NotPermitted, UnknownTopic
from django_delayq.integrations.prometheus import metrics
from django_delayq.models import ArchivedMessage, BulkOperation, Dashboard
from django_delayq.operators import api_tokens, bulk, operations
from django_delayq.operators.bulk_runner import BulkRunner
from django_delayq.operators.waiting_orders import WaitingChange, start_waiting
from django_delayq.operators.waiting_selection import WaitingSelection
from django_delayq.outbox.existing import every_topic
from django_delayq.store.store import RedisStore
from tests.admin.browser import address
from tests.admin.test_permissions import reached
from tests.admin.world import World, told
from tests.app.tasks import act, close_order
from tests.hands import DAY, Hands

ALL = frozenset(codename for codename, _ in Dashboard._meta.permissions)

#: What the rule of these tests permits: actions by topic. A topic that is missing is hidden.
RIGHTS: dict[str, set[str]] = {}
#: How often it was asked, by topic and action.
ASKED = Counter[tuple[str, str]]()


def rule(user: Any, topic: str, action: str) -> bool:
    """The project's own function."""
    ASKED[topic, action] += 1
    return action in RIGHTS.get(topic, ())


@pytest.fixture(autouse=True)
def _limited(settings: Any, delayq: RedisStore) -> Iterator[None]:
    settings.DELAYQ = {**settings.DELAYQ, "TOPIC_PERMISSION": f"{__name__}.rule"}
    ASKED.clear()
    yield
    RIGHTS.clear()


@pytest.fixture
def everyone_sees() -> Callable[..., None]:
    """Gives all rights on these topics, and none on all others."""

    def see(*topics: str, without: str = "") -> None:
        RIGHTS.clear()
        RIGHTS.update({topic: set(ALL) - {without} for topic in topics})

    return see


@pytest.fixture
def operator(new_user: Callable[..., User]) -> User:
    """Has every permission of Django's."""
    return new_user(*ALL)


@pytest.fixture
def client(operator: User) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(operator)
    return client


def run_bulk(store: RedisStore, operation: BulkOperation) -> BulkOperation:
    runner = BulkRunner(store, "test")
    runner.run_this(operation.pk, lambda: None)
    operation.refresh_from_db()
    return operation


# The pages

ON_A_TOPIC = {
    page.name
    for page in site._pages
    if "<str:topic>" in page.route
    or page.name in ("archived", "bulk", "bulk_csv", "unarchivable_entry")
}


def test_each_page_of_a_hidden_topic_is_not_there(
    world: World, client: Client, everyone_sees: Callable[..., None]
):
    everyone_sees("default")
    answers = {
        (page.name, method): reached(client, page, world, method)
        for page in site._pages
        if page.name in ON_A_TOPIC
        for method in ("GET", "POST")
    }
    expected = {
        (page.name, method): "404" if method in page.methods else "405"
        for page in site._pages
        if page.name in ON_A_TOPIC
        for method in ("GET", "POST")
    }
    assert answers == expected


def test_each_action_on_a_topic_needs_its_right_there(
    world: World, client: Client, everyone_sees: Callable[..., None]
):
    for page in site._pages:
        if "<str:topic>" in page.route and "POST" in page.methods:
            everyone_sees("orders", "modes", without=page.permissions[1])
            assert reached(client, page, world, "POST") == "403", page.name


@pytest.mark.parametrize("name", ["archived_replay", "archived_discard"])
def test_a_dead_letter_of_a_hidden_topic_is_not_changed(
    name: str, world: World, client: Client, everyone_sees: Callable[..., None]
):
    everyone_sees("orders")
    client.post(address(name, pk=world.dead), {"reason": "a test"})
    row = ArchivedMessage.objects.get(pk=world.dead)
    assert row.replayed_at is None
    assert row.discarded_at is None


def test_no_page_names_a_hidden_topic(
    world: World, client: Client, everyone_sees: Callable[..., None]
):
    everyone_sees("orders")
    hidden = {"modes", "unworthy", "tests.app.tasks.act"}
    shown = {}
    for page in site._pages:
        if "GET" in page.methods and page.name not in ON_A_TOPIC:
            text = told(client.get(address(page.name, **world.fill(page)), follow=True))
            if found := [word for word in hidden if word in text]:
                shown[page.name] = found
    assert shown == {}


def test_what_is_seen_is_still_shown(
    world: World, client: Client, everyone_sees: Callable[..., None]
):
    everyone_sees("orders")
    for name in ("changelist", "archive", "archive_csv", "archive_parquet"):
        assert "orders" in told(client.get(address(name))), name
    found = client.get(address("find"), {"q": "key:order:1042"})
    assert found.url == address("message", topic="orders", message_id=world.waiting.id)


def test_the_sums_of_the_overview_leave_out_hidden_topics(
    world: World, client: Client, everyone_sees: Callable[..., None]
):
    everyone_sees("modes")
    act.using(delay=DAY).enqueue("return")
    totals = client.get(address("changelist")).context["totals"]
    assert (totals.delayed, totals.dead_letters) == (1, 1)


def test_search_by_id_and_key_finds_nothing_hidden(
    world: World, client: Client, everyone_sees: Callable[..., None]
):
    everyone_sees("modes")
    for query in (world.waiting.id, "key:order:1042", "order:1042"):
        for topic in ("", "orders"):
            answer = client.get(address("find"), {"q": query, "topic": topic})
            assert answer.status_code == 200
            assert answer.context["rows"] == []


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("find", {"q": "args.*:1042"}),
        ("find", {"q": "1042"}),
        ("waiting", {"argument": "order_id=1042"}),
    ],
)
def test_a_hidden_topic_is_searched_like_one_that_nobody_has(
    name: str,
    query: dict[str, str],
    world: World,
    client: Client,
    everyone_sees: Callable[..., None],
):
    everyone_sees("modes")
    pages = {}
    for topic in ("orders", "nobody"):
        text = client.get(address(name), {**query, "topic": topic}).getvalue().decode()
        main = text.partition('id="content"')[2].partition('id="footer"')[0]
        main = re.sub(r"csrfmiddlewaretoken[^>]*|data-now=\S+", "", main)
        pages[topic] = main.replace(topic, "TOPIC")
    assert pages["orders"] == pages["nobody"]
    assert "orders" not in pages["nobody"]


def test_a_right_that_is_missing_on_one_topic_hides_arguments_in_lists(
    world: World, client: Client, everyone_sees: Callable[..., None]
):
    everyone_sees("orders", "modes", without="view_payload")
    assert b"unworthy" not in client.get(address("archive_csv")).getvalue()
    assert b"unworthy" not in client.get(address("archived", pk=world.dead)).getvalue()


# The service layer


def test_the_calls_refuse_a_hidden_topic_as_one_that_is_not_there(
    world: World, operator: User, everyone_sees: Callable[..., None]
):
    everyone_sees("default")
    with pytest.raises(UnknownTopic):
        operations.pause(operator, "orders", reason="a test")
    with pytest.raises(UnknownTopic):
        operations.cancel(operator, "orders", world.waiting.id)
    with pytest.raises(MessageNotFound):
        operations.discard_one(operator, world.dead, reason="a test")
    assert operations.archive_again(operator).count == 0


def test_a_worker_is_made_quiet_by_who_may_pause_all_its_topics(
    world: World, operator: User, everyone_sees: Callable[..., None]
):
    everyone_sees("orders")
    with pytest.raises(NotPermitted):
        operations.quiet(operator, "host:1:worker")
    everyone_sees("orders", "modes")
    operations.quiet(operator, "host:1:worker")


def test_a_token_reaches_no_further_than_who_makes_it(
    world: World, operator: User, everyone_sees: Callable[..., None]
):
    everyone_sees("orders")
    options = api_tokens.TokenOptions(name="shop", rights=["send"])
    with pytest.raises(NotPermitted):
        api_tokens.create_token(operator, options)
    options = api_tokens.TokenOptions(name="shop", rights=["send"], topics=["orders"])
    assert api_tokens.create_token(operator, options)


# Bulk operations


def test_a_bulk_operation_changes_only_what_who_ordered_it_may_change(
    hands: Hands, world: World, operator: User, everyone_sees: Callable[..., None]
):
    everyone_sees("orders")
    selection = Selection(state="dead")
    operation = bulk.start(operator, "discard", selection, reason="a test")
    assert bulk.preview("discard", selection, frozenset({"orders"})).count == 0
    assert run_bulk(hands.store, operation).count == 0
    everyone_sees("orders", "modes")
    operation = bulk.start(operator, "discard", selection, reason="a test")
    assert run_bulk(hands.store, operation).count == 1


def test_a_right_that_is_lost_after_the_order_counts_when_it_runs(
    hands: Hands, world: World, operator: User, everyone_sees: Callable[..., None]
):
    everyone_sees("modes")
    ordered = [
        bulk.start(operator, kind, Selection(topic="modes", state="dead"), reason="a test")
        for kind in ("replay", "discard")
    ]
    everyone_sees("orders")
    assert {run_bulk(hands.store, operation).status for operation in ordered} == {"failed"}
    assert ArchivedMessage.objects.get(pk=world.dead).discarded_at is None


def test_who_has_left_changes_nothing_any_more(
    hands: Hands, world: World, operator: User, everyone_sees: Callable[..., None]
):
    everyone_sees("modes")
    operation = bulk.start(operator, "discard", Selection(topic="modes"), reason="a test")
    User.objects.filter(pk=operator.pk).update(is_active=False)
    assert run_bulk(hands.store, operation).status == "failed"


def test_a_change_of_waiting_messages_leaves_out_hidden_topics(
    hands: Hands, world: World, operator: User, everyone_sees: Callable[..., None]
):
    act.using(delay=DAY, key="order:1").enqueue("return")
    everyone_sees("orders")
    which = WaitingSelection(key_prefix="order:")
    change = WaitingChange(kind="cancel")
    assert run_bulk(hands.store, start_waiting(operator, change, which, reason="a test")).count == 1
    with pytest.raises(UnknownTopic):
        start_waiting(operator, change, WaitingSelection(topic="modes"), reason="a test")
    close_order.using(delay=DAY, key="order:2").enqueue(2)
    late = start_waiting(operator, change, which, reason="a test")
    everyone_sees("default")
    assert run_bulk(hands.store, late).count == 0


def test_operations_on_hidden_topics_are_not_listed(
    world: World, client: Client, everyone_sees: Callable[..., None]
):
    everyone_sees("orders")
    assert client.get(address("bulk_list")).context["lines"] == []
    everyone_sees("orders", "modes")
    assert len(client.get(address("bulk_list")).context["lines"]) == 1


# Elsewhere


def test_the_metrics_are_for_who_sees_every_topic(
    world: World, operator: User, everyone_sees: Callable[..., None], rf: RequestFactory
):
    request = rf.get("/metrics")
    request.user = operator
    everyone_sees("orders")
    assert metrics(request).status_code == 403
    everyone_sees(*every_topic())
    assert metrics(request).status_code == 200


def test_a_function_that_is_not_there_is_e007(settings: Any):
    settings.DELAYQ = {**settings.DELAYQ, "TOPIC_PERMISSION": "nowhere.rule"}
    assert [message.id for message in check_settings()] == ["delayq.E007"]


def test_a_page_asks_once_for_each_topic_and_the_next_one_asks_again(
    as_user: Callable[..., Client], everyone_sees: Callable[..., None]
) -> None:
    everyone_sees("orders", "default")
    viewer = as_user(*ALL)
    for turn in (1, 2):
        assert viewer.get(address("archive")).status_code == 200
        assert set(ASKED.values()) == {turn}
