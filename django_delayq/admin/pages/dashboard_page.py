"""The entry in the admin, and the addresses of all pages."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import URLPattern

from ...models import Dashboard
from ..site import page_urls
from . import (  # noqa: F401 - their pages
    api_tokens_page,
    archive_page,
    bulk_page,
    dead_letters_page,
    find_page,
    message_page,
    operator_actions_page,
    overview_page,
    recurring_page,
    running_page,
    schedule_page,
    statistics_page,
    topic_page,
    unarchivable_page,
    waiting_page,
    workers_page,
    zone_page,
)


@admin.register(Dashboard)
class DashboardAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Has no rows of its own: every address is one of our pages."""

    def get_urls(self) -> list[URLPattern]:
        """Instead of the changelist and the forms of a model."""
        return page_urls(self.admin_site)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the admin's index shows it."""
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether it is a link there."""
        return bool(request.user.has_perm("django_delayq.view_dashboard"))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never."""
        return False

    has_add_permission = has_delete_permission = has_change_permission
