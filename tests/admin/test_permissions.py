"""Who may see and do what: every page and every call of the service layer, by every kind of
user."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import Client
from django.utils import timezone as django_timezone

from django_delayq import delayed_task, pause_topic
from django_delayq.admin import site
from django_delayq.archive.selection import Selection
from django_delayq.client import decorator
from django_delayq.core.exceptions import NotPermitted
from django_delayq.models import ArchivedMessage, Dashboard, OperatorAction, RecurringTask
from django_delayq.operators import bulk, operations, recurring
from django_delayq.operators.bulk_run import PERMISSIONS
from django_delayq.store import get_store
from tests.admin.browser import address
from tests.admin.test_csp import shown_addresses
from tests.admin.world import WORKER, World, told
from tests.app.tasks import close_order, noop
from tests.hands import DAY, Hands

ALL = frozenset(codename for codename, _ in Dashboard._meta.permissions)

RECURRING, PAUSED = "tests.recurring", "tests.paused"

#: Kinds of staff, by the permissions that they have.
STAFF = {
    "nobody": frozenset[str](),
    "viewer": frozenset({"view_dashboard"}),
    "viewer of payloads": frozenset({"view_dashboard", "view_payload"}),
    "operator": ALL - {"bulk_operate"},
    "superuser": ALL,
}

#: What each call of the service layer needs, written down a second time: from issue 5, not from the
#: code.
NEEDED = {
    "operations.pause": {"pause_topic"},
    "operations.resume": {"pause_topic"},
    "operations.move": {"bulk_operate", "cancel_message"},
    "operations.cancel": {"cancel_message"},
    "operations.cancel_running": {"cancel_message"},
    "operations.run_now": {"cancel_message"},
    "operations.reschedule": {"cancel_message"},
    "operations.edit": {"edit_message", "view_payload"},
    "operations.schedule": {"edit_message", "view_payload"},
    "operations.replay_one": {"replay_message"},
    "operations.discard_one": {"discard_message"},
    "operations.archive_again": {"replay_message"},
    "operations.quiet": {"pause_topic"},
    "operations.unquiet": {"pause_topic"},
    "recurring.pause_recurring": {"pause_topic"},
    "recurring.resume_recurring": {"pause_topic"},
    "recurring.run_recurring_now": {"cancel_message"},
    "bulk.start": {"bulk_operate", "replay_message"},
    "bulk.cancel": {"bulk_operate", "replay_message"},
}

#: How each of them is called by a test: (user, world) -> whatever it returns.
CALLS: dict[str, Callable[[Any, World], Any]] = {
    "operations.pause": lambda user, world: operations.pause(user, "orders", reason="a test"),
    "operations.resume": lambda user, world: (
        pause_topic("orders", reason="a resume of what is not paused leaves no record"),
        operations.resume(user, "orders"),
    ),
    "operations.move": lambda user, world: operations.move(user, "orders", "default"),
    "operations.cancel": lambda user, world: operations.cancel(user, "orders", world.waiting.id),
    "operations.cancel_running": lambda user, world: operations.cancel_running(
        user, "orders", world.waiting.id
    ),
    "operations.run_now": lambda user, world: operations.run_now(user, "orders", world.waiting.id),
    "operations.reschedule": lambda user, world: operations.reschedule(
        user, "orders", world.waiting.id, datetime.now(tz=timezone.utc) + timedelta(days=2)
    ),
    "operations.edit": lambda user, world: operations.edit(
        user, "orders", world.waiting.id, ([7], {})
    ),
    "operations.schedule": lambda user, world: operations.schedule(
        user, "tests.app.tasks.noop", ([], {}), delay=60
    ),
    "operations.replay_one": lambda user, world: operations.replay_one(user, world.dead),
    "operations.discard_one": lambda user, world: operations.discard_one(
        user, world.dead, reason="a test"
    ),
    "operations.archive_again": lambda user, world: operations.archive_again(user, world.aside),
    "operations.quiet": lambda user, world: operations.quiet(user, WORKER),
    "operations.unquiet": lambda user, world: (
        get_store().workers.quiet(WORKER),
        operations.unquiet(user, WORKER),
    ),
    "recurring.pause_recurring": lambda user, world: recurring.pause_recurring(
        user, RECURRING, reason="a test"
    ),
    "recurring.resume_recurring": lambda user, world: recurring.resume_recurring(user, PAUSED),
    "recurring.run_recurring_now": lambda user, world: recurring.run_recurring_now(user, RECURRING),
    "bulk.start": lambda user, world: bulk.start(
        user, "replay", Selection(topic="modes"), reason="a test"
    ),
    "bulk.cancel": lambda user, world: bulk.cancel(user, world.bulk),
}


@pytest.fixture(autouse=True)
def _recurring_tasks(declared: dict[str, Any], transactional_db: None) -> None:
    """Two recurring tasks; an operator has paused one of them."""
    for name in (RECURRING, PAUSED):
        delayed_task(name=name, every=3600)(lambda: None)
    RecurringTask.objects.create(
        task=PAUSED, rule="every 3600 s", upto_ms=1, paused_at=django_timezone.now()
    )


@pytest.fixture
def someone(new_user: Callable[..., User]) -> Callable[[str], Any]:
    """A user of this kind."""

    def make(kind: str) -> Any:
        if kind == "anonymous":
            return AnonymousUser()
        return new_user(superuser=True) if kind == "superuser" else new_user(*STAFF[kind])

    return make


# The pages


def reached(client: Client, page: site.PageRoute, world: World, method: str) -> str:
    """What became of a request: `page`, `login`, `elsewhere` (a redirect inside) or the status."""
    answer = client.generic(method, address(page.name, **world.fill(page)), follow=False)
    if answer.status_code == 302:
        return "login" if answer.url.startswith("/admin/login/") else "elsewhere"
    if answer.status_code == 200 and method == "GET":
        b"".join(answer.streaming_content) if answer.streaming else answer.content
    return "page" if answer.status_code == 200 else str(answer.status_code)


def allowed(page: site.PageRoute, method: str, held: frozenset[str]) -> set[str]:
    """What may become of it for a user with these permissions."""
    if not set(page.permissions) <= held:
        return {"403"}
    if method not in page.methods:
        return {"405"}
    # An earlier POST of the same test may have cancelled the message.
    return {"page", "elsewhere"} if method == "GET" else {"page", "elsewhere", "404"}


def all_answers(client: Client, world: World) -> dict[tuple[str, str], str]:
    """What becomes of a GET and a POST to every address."""
    return {
        (page.name, method): reached(client, page, world, method)
        for page in site._pages
        for method in ("GET", "POST")
    }


@pytest.mark.parametrize("kind", STAFF)
def test_a_page_opens_to_those_who_may_see_it(
    kind: str, world: World, someone: Callable[[str], Any], before: Callable[[], int]
):
    client = Client(raise_request_exception=False)
    client.force_login(someone(kind))
    answers = all_answers(client, world)
    wrong = {
        (page.name, method): (answers[page.name, method], sorted(expected))
        for page in site._pages
        for method in ("GET", "POST")
        if answers[page.name, method] not in (expected := allowed(page, method, STAFF[kind]))
    }
    assert not wrong, "got, expected"
    if kind in ("nobody", "viewer", "viewer of payloads"):
        assert OperatorAction.objects.count() == before()


@pytest.mark.parametrize("who", ["anonymous", "not staff"])
def test_who_is_not_staff_is_asked_to_log_in(
    who: str, world: World, as_user: Callable[..., Client]
):
    client = Client() if who == "anonymous" else as_user(*ALL, staff=False)
    assert set(all_answers(client, world).values()) == {"login"}


def test_whatever_changes_something_needs_more_than_to_look(world: World):
    lax = [
        page.name
        for page in site._pages
        if "POST" in page.methods and set(page.permissions) <= {"view_dashboard"}
    ]
    assert lax == ["zone"]  # which changes nothing but a cookie of the own browser


def test_nothing_is_changed_without_the_token_of_a_form(
    world: World, someone: Callable[[str], Any]
):
    client = Client(enforce_csrf_checks=True)
    client.force_login(someone("superuser"))
    posts = [page for page in site._pages if "POST" in page.methods]
    assert posts
    statuses = {
        page.name: client.post(address(page.name, **world.fill(page))).status_code for page in posts
    }
    assert set(statuses.values()) == {403}, statuses


def test_every_form_of_a_page_carries_the_token(world: World, someone: Callable[[str], Any]):
    client = Client()
    client.force_login(someone("superuser"))
    for name, where in shown_addresses(world).items():
        text = client.get(where, follow=True).content.decode()
        forms = [form.partition("</form>")[0] for form in text.split("<form")[1:]]
        posts = [form for form in forms if 'method="post"' in form.partition(">")[0]]
        assert all('name="csrfmiddlewaretoken"' in form for form in posts), name


# The service layer


def service_calls(module: ModuleType) -> set[str]:
    """Names of the public functions whose first argument is the user."""
    prefix = module.__name__.rpartition(".")[2]
    functions = inspect.getmembers(module, inspect.isfunction)
    return {
        f"{prefix}.{name}"
        for name, function in functions
        if function.__module__ == module.__name__
        and not name.startswith("_")
        and name not in ("require", "seen_by")
        and next(iter(inspect.signature(function).parameters), "") == "user"
    }


@pytest.fixture
def before(world: World) -> Callable[[], int]:
    """How many operator actions the world itself has left."""
    count = OperatorAction.objects.count()
    return lambda: count


def test_every_call_of_the_service_layer_is_in_this_matrix():
    found = service_calls(operations) | service_calls(bulk) | service_calls(recurring)
    assert found == set(CALLS) == set(NEEDED)


@pytest.mark.parametrize("kind", ["anonymous", *STAFF])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_done_and_recorded_once_or_refused(
    call: str, kind: str, world: World, someone: Callable[[str], Any], before: Callable[[], int]
):
    user = someone(kind)
    if NEEDED[call] <= STAFF.get(kind, frozenset()):
        CALLS[call](user, world)
        (action,) = OperatorAction.objects.order_by("pk")[before() :]
        assert action.operator == user.get_username()
    else:
        with pytest.raises(NotPermitted, match="lacks the permission"):
            CALLS[call](user, world)
        assert OperatorAction.objects.count() == before()


@pytest.mark.parametrize("kind", ["purge", "discard"])
def test_a_bulk_operation_needs_the_permission_of_what_it_does(
    kind: str, world: World, new_user: Callable[..., User]
):
    selection = (
        Selection(topic="orders") if kind == "purge" else Selection(open=True, topic="orders")
    )
    own = PERMISSIONS[bulk.BulkKind(kind)]
    with pytest.raises(NotPermitted, match=own):
        bulk.start(new_user(*(ALL - {own})), kind, selection, reason="a test")
    assert bulk.start(new_user("bulk_operate", own), kind, selection, reason="a test").pk


def test_to_archive_all_again_is_a_bulk_operation(world: World, new_user: Callable[..., User]):
    with pytest.raises(NotPermitted, match="bulk_operate"):
        operations.archive_again(new_user("replay_message"))
    assert operations.archive_again(new_user("replay_message", "bulk_operate")).count == 1


def test_other_arguments_need_more_than_a_replay(world: World, new_user: Callable[..., User]):
    with pytest.raises(NotPermitted, match="edit_message"):
        operations.replay_one(new_user("replay_message"), world.dead, arguments=(["return"], {}))
    editor = new_user("replay_message", "edit_message", "view_payload")
    assert operations.replay_one(editor, world.dead, arguments=(["return"], {})).replayed_by


# What messages carry

SECRET = "4111-1111"


@pytest.fixture
def secrets_everywhere(world: World) -> list[str]:
    """The addresses of all pages, after a secret went into everything that a producer or a worker
    may write of a message besides its key."""
    world.aside = world.put_aside(SECRET, headers={"card": SECRET})
    waiting = close_order.using(delay=DAY, headers={"card": SECRET}).enqueue(1042, reason=SECRET)
    line = {
        "worker": "w",
        "started_ms": 1e12,
        "ended_ms": 1e12,
        "outcome": "retried",
        "error": f"ValueError: {SECRET}",
    }
    body = json.dumps({"args": [SECRET], "kwargs": {}})
    ArchivedMessage.objects.update(
        body=body,
        headers=json.dumps({"card": SECRET}),
        history=json.dumps(line),
        error_message=SECRET,
        traceback=SECRET,
    )
    world.arguments_of["message_id"] = waiting.id
    return [address(page.name, **world.fill(page)) for page in site._pages if "GET" in page.methods]


def test_what_messages_carry_is_shown_only_to_those_who_may_see_it(
    secrets_everywhere: list[str], as_user: Callable[..., Client]
):
    def showing(client: Client) -> list[str]:
        answers = {path: client.get(path, follow=True) for path in secrets_everywhere}
        return [path for path, answer in answers.items() if SECRET in told(answer)]

    assert showing(as_user(*(ALL - {"view_payload"}))) == []
    assert (
        len(showing(as_user("view_dashboard", "view_payload", "download_messages"))) >= 5
    )  # the message, the archived one, CSV and Parquet, the entry aside


# Looking changes nothing


def test_looking_at_a_message_does_not_run_its_task(
    hands: Hands, as_user: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
):
    """Templates call what can be called, and a task can: one of them was run by the page that shows
    it."""
    world = World(hands)
    called: list[Any] = []
    monkeypatch.setattr(
        decorator.DelayedTask, "__call__", lambda task, *args, **kwargs: called.append(task)
    )
    client = as_user(superuser=True)
    ArchivedMessage.objects.update(task="tests.app.tasks.noop")
    world.arguments_of["message_id"] = noop.using(delay=DAY).enqueue().id
    world.arguments_of["topic"] = "default"
    looked = [
        client.get(address(page.name, **world.fill(page)))
        for page in site._pages
        if "GET" in page.methods
    ]
    assert {answer.status_code for answer in looked} <= {200, 302}
    assert called == []
