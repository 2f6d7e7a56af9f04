import pytest
from cafe.models import Order
from cafe.tasks import close_order, forget_closed, send_mail


@pytest.fixture
def order(delay_queue, client):
    return Order.objects.get(pk=client.post("/orders/").content.decode())


def test_an_unpaid_order_is_closed_after_half_an_hour(delay_queue, order):
    delay_queue.travel(minutes=29)
    assert delay_queue.run_due().of(close_order).outcomes == []
    delay_queue.travel(minutes=1)
    assert delay_queue.run_due().of(close_order).outcomes == ["acked"]
    order.refresh_from_db()
    assert order.state == "closed"


def test_an_order_that_is_paid_stays(delay_queue, order):
    close_order.cancel(key=close_order.key_for(order.pk))
    delay_queue.refute_enqueued(close_order)


def test_a_mail_that_fails_is_sent_again(delay_queue, order):
    delay_queue.fail_next(OSError("no answer"), task=send_mail)
    (run,) = delay_queue.run_due().of(send_mail)
    assert run.outcome == "retried"
    delay_queue.travel(run.delay)
    assert delay_queue.run_due().of(send_mail).outcomes == ["acked"]


def test_closed_orders_are_forgotten_at_night(delay_queue, db):
    Order.objects.create(state="closed")
    tick = delay_queue.recur(forget_closed)
    delay_queue.travel_to(tick)
    assert delay_queue.run_due().outcomes == ["acked"]
    assert not Order.objects.exists()


def test_one_mail_leaves_in_a_second(delay_queue):
    send_mail.enqueue_many([("a@example.com",), ("b@example.com",)])
    assert delay_queue.run_due().outcomes == ["acked"]
    delay_queue.travel(seconds=1)
    assert delay_queue.run_due().outcomes == ["acked"]
