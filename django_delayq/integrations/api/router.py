"""The one router of the API: two methods of an address have to stand in the same router."""

from __future__ import annotations

from ninja import Router

router = Router()
