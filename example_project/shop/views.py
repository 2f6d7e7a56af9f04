"""The pages of the shop. Everything that changes something is a POST."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from django_delayq import DelayQError, MessageNotFound, MessageRunning

from . import checkout
from .models import Coupon, Order, Product
from .timeline import queue_figures, timeline

WINDOWS = range(2, 121)
RACES = 10


@require_safe
@never_cache
def home(request: HttpRequest) -> HttpResponse:
    """Products, the newest orders and what the queue holds."""
    context = {
        "products": Product.objects.order_by("pk"),
        "orders": Order.objects.select_related("product")[:8],
        "coupons": Coupon.objects.valid().count(),
        "queue": queue_figures(),
    }
    return render(request, "shop/home.html", context)


@require_POST
def buy(request: HttpRequest) -> HttpResponse:
    """Order one piece and show the order."""
    product, window = request.POST.get("product", ""), request.POST.get("window", "30")
    if not (product.isdecimal() and window.isdecimal() and int(window) in WINDOWS):
        return HttpResponseBadRequest(
            f"Choose a product, and {WINDOWS[0]} to {WINDOWS[-1]} seconds to pay."
        )
    return _ordering(request, lambda: checkout.place(int(product), int(window)), "shop:home")


@require_safe
@never_cache
def order(request: HttpRequest, pk: int) -> HttpResponse:
    """The countdown, the message behind it and the buttons."""
    shown = get_object_or_404(Order.objects.select_related("product"), pk=pk)
    line = timeline(shown)
    waiting = not line.settled or (shown.state == Order.State.PAID and shown.stars is None)
    context = {"order": shown, "line": line, "now": timezone.now(), "waiting": waiting}
    return render(request, "shop/order.html", context | _tally())


@require_POST
def pay(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay now."""
    shown = get_object_or_404(Order, pk=pk)
    if not checkout.pay(pk):
        shown.refresh_from_db(fields=["state"])
        messages.error(request, f"Too late: the order is already {shown.state}.")
    return redirect(shown)


@require_POST
def extend(request: HttpRequest, pk: int) -> HttpResponse:
    """30 s more."""
    shown = get_object_or_404(Order, pk=pk)
    try:
        checkout.more_time(shown)
    except (MessageNotFound, MessageRunning):
        messages.error(request, "Too late: the deadline has passed.")
    except DelayQError as error:
        messages.error(request, f"The deadline stays as it is: {error}")
    return redirect(shown)


@require_POST
def race(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay at the last moment."""
    shown = get_object_or_404(Order, pk=pk)
    try:
        checkout.race(shown)
    except MessageNotFound:
        messages.error(request, "Too late: the race is over.")
    except DelayQError as error:
        messages.error(request, f"No race now: {error}")
    return redirect(shown)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def races(request: HttpRequest) -> HttpResponse:
    """All races so far; POST starts ten more."""
    if request.method == "POST":
        return _ordering(request, lambda: checkout.start_races(RACES, WINDOWS[0]), "shop:races")
    run = Order.objects.exclude(race_offset_ms=None).select_related("product")
    waiting = run.pending().exists()
    return render(request, "shop/races.html", _tally() | {"races": run[:200], "waiting": waiting})


def _ordering(
    request: HttpRequest, place: Callable[[], Order | None], fallback: str
) -> HttpResponse:
    """Go to what was placed, else to the fallback, and say why."""
    try:
        return redirect(place() or fallback)
    except checkout.SoldOut:
        messages.error(request, "Sold out: wait until somebody else's order closes.")
    except DelayQError as error:
        messages.error(request, f"We cannot take orders now: {error}")
    return redirect(fallback)


def _tally() -> dict[str, Any]:
    run = Order.objects.exclude(race_offset_ms=None)
    both = run.exclude(paid_at=None).exclude(closed_at=None)
    paid, closed = run.filter(state=Order.State.PAID), run.filter(state=Order.State.CLOSED)
    return {"tally": {"paid": paid.count(), "closed": closed.count(), "both": both.count()}}
