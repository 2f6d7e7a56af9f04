"""The API alone."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [path("delayq/api/", include("django_delayq.integrations.api.urls"))]
