"""The app of the chaos programs: in a process that was told to die at a point, that point is armed
at the start."""

from __future__ import annotations

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    """Counter and Order."""

    name = "tests.chaos"
    label = "chaos"

    def ready(self) -> None:
        """Arm the failpoint that the environment names, if it does."""
        from tests.chaos import failpoints

        failpoints.arm()
