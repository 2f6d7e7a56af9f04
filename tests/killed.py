"""Programs that kill themselves in the middle of their work, on the servers of a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from django.conf import settings
from django.db import connection

from tests.databases import VARIABLE
from tests.test_readme import ROOT

BEGIN = """
import os, signal
import django
django.setup()

def killing(owner, name, call, *, before=False):
    "Let the process die in this call of the function, with its effect or before it."
    function, calls = getattr(owner, name), []
    def counted(*args, **kwargs):
        calls.append(1)
        if before and len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        done = function(*args, **kwargs)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(owner, name, counted)
"""


def run_killed(code: str, **options: Any) -> None:
    """Run a program that begins with BEGIN and kills itself, with the database, server and prefix
    of this test, and these entries of DELAYQ."""
    names = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    entry = {
        name: connection.settings_dict[name] for name in names if connection.settings_dict.get(name)
    }
    environment = {
        **os.environ,
        VARIABLE: json.dumps({**entry, "NAME": str(entry["NAME"])}),
        "DJANGO_SETTINGS_MODULE": "tests.acceptance.settings",
        "DELAYQ_TEST_REDIS": settings.DELAYQ["REDIS"],
        "DELAYQ_TEST_PREFIX": settings.DELAYQ["PREFIX"],
        "DELAYQ_TEST_SETTINGS": json.dumps(options),
    }
    command = (sys.executable, "-c", BEGIN + code)
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stdout.decode() + ended.stderr.decode()
