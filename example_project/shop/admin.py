"""The shop in Django's admin."""

from __future__ import annotations

from django.contrib import admin

from .models import Coupon, Order, Product


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Products and their stock."""

    list_display = ["name", "price", "stock"]


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Orders and their instants."""

    list_display = [
        "pk",
        "product",
        "state",
        "due_at",
        "fired_at",
        "paid_at",
        "closed_at",
        "race_offset_ms",
    ]
    list_filter = ["state"]
    list_select_related = ["product"]


@admin.register(Coupon)
class CouponAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Coupons."""

    list_display = ["code", "percent", "valid_until", "expired_at"]
