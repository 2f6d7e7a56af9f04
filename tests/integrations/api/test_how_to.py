"""docs/how-to/http-api.md: its commands run, against a real web server."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.integrations.api.served import serving
from tests.test_docs import docs


@pytest.mark.long
@pytest.mark.acceptance
def test_the_calls_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    text = docs("how-to/http-api.md")
    calls = [code for code in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "$URL" in code]
    assert len(calls) == 5
    with serving(tmp_path) as served:
        environment = {**served.environment, "URL": served.url, "TOKEN": served.token}
        answers = [
            subprocess.run(
                ["bash", "-euo", "pipefail", "-c", code],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            for code in calls
        ]
    assert '"outcome":"stored"' in answers[0]
    assert answers[1].count('"outcome":"stored"') == 2
    assert answers[3].count('"lease":') >= 3
    assert '"paused":{"by":"api:fuzz","reason":"deploy"' in answers[4]
