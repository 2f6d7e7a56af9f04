from decimal import Decimal

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils import timezone

from .models import Order
from .tasks import close_order, send_mail


def place(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        order = Order.objects.create()
        close_order.enqueue(order.pk, Decimal("9.90"), timezone.now())
        send_mail.enqueue("cook@example.com")
    return HttpResponse(order.pk, status=201)


urlpatterns = [path("orders/", place)]
