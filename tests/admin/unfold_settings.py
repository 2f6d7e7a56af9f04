"""The settings of the tests, with django-unfold, which comes before the admin that it dresses."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as PLAIN

INSTALLED_APPS = ["unfold", *PLAIN]
