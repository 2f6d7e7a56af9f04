"""A program consumes over HTTP: what it does becomes what a worker would do."""

from __future__ import annotations

from django_delayq.models import ArchivedMessage
from tests.hands import Hands
from tests.integrations.api.conftest import Caller


def test_a_message_is_sent_consumed_and_acked(caller: Caller, hands: Hands) -> None:
    message_id = caller.send(task="letter", kwargs={"to": "ada"}, headers={"trace": "1"})
    message = caller.next()
    assert message["id"] == message_id
    assert (message["task"], message["kwargs"], message["attempt"]) == ("letter", {"to": "ada"}, 1)
    answer = caller.post("/leases/ack", lease=message["lease"])
    assert (answer.status_code, answer.json()) == (200, {"id": message_id, "state": "acked"})
    (row,) = hands.archive()
    assert (row.state, row.task, row.worker, row.attempts) == ("acked", "letter", "api:program", 1)
    assert ArchivedMessage.objects.count() == 1
