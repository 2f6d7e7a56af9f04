"""A project with two admin sites: ours is at another address than the default one, under another
name."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from django_delayq.admin import DashboardAdmin
from django_delayq.models import Dashboard

operators = admin.AdminSite(name="operators")
operators.register(Dashboard, DashboardAdmin)

urlpatterns = [
    path("admin/", admin.site.urls),
    path("back-office/queue/", operators.urls),
]
