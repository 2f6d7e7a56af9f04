"""Rules of ALERTS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from django_delayq.core.alert_rules import AlertRule
from django_delayq.core.conf import get_settings
from tests.stats.alerts.conftest import notices, remember


@pytest.fixture
def rules(settings: Any) -> Callable[..., Sequence[AlertRule]]:
    """Sets ALERTS. A rule that names no target tells `remember`."""
    notices.clear()

    def set_rules(*rules: dict[str, Any]) -> Sequence[AlertRule]:
        alerts = [{"to": f"{remember.__module__}.remember"} | rule for rule in rules]
        settings.DELAYQ = {**settings.DELAYQ, "ALERTS": alerts, "ALERT_SECRET": "shh"}
        return get_settings().alerts

    return set_rules
