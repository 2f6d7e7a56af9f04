"""The addresses of the API, as a project includes them."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("delayq/api/", include("django_delayq.integrations.api.urls")),
]
