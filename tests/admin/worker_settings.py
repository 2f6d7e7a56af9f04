"""The settings of the tests for a worker process: the same database and Redis as the test that
starts it."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import DELAYQ as PLAIN

DELAYQ = {**PLAIN, "PREFIX": os.environ.get("DELAYQ_TEST_PREFIX", "admin")}
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
