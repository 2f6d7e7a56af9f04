"""axe-core finds nothing on any page: in both themes, at both widths, under the admin and under
django-unfold, with everything opened."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from tests.admin.test_csp import shown_addresses
from tests.admin.world import World

ROOT = Path(__file__).parents[2]
#: Our part of the page; the frame around it is the admin's.
_RUN = """async () => {
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  const found = await axe.run(document.querySelector(".delayq"), { resultTypes: ["violations"] });
  return found.violations.map((one) => ({
    rule: one.id, nodes: one.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)),
  }));
}"""


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(
    width: int,
    dark: bool,
    world: World,
    browser_page: Callable[..., Any],
    as_user: Callable[..., Any],
    browser_problems: list[str],
):
    pytest.importorskip("axe_playwright_python")
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    tab = browser_page(as_user(superuser=True), width=width, dark=dark)
    # A page that is not seen is not refreshed while axe looks at it.
    tab.add_init_script("Object.defineProperty(document, 'hidden', { get: () => true })")
    wrong = {}
    for name, where in shown_addresses(world).items():
        tab.goto(where)
        tab.evaluate(axe)
        if found := tab.evaluate(_RUN):
            wrong[name] = found
    if "unfold" in django_settings.INSTALLED_APPS:
        browser_problems.clear()  # its own scripts need more than our policy allows
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_axe_finds_nothing_under_unfold():
    pytest.importorskip("unfold")
    pytest.importorskip("axe_playwright_python")
    if "unfold" in django_settings.INSTALLED_APPS:
        return
    test = f"{Path(__file__).relative_to(ROOT)}::{test_axe_finds_nothing.__name__}"
    command = [sys.executable, "-m", "pytest", test, "-q", "-p", "no:cacheprovider", "-n", "0"]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not re.match("PYTEST_|DELAYQ_TEST_", name)
    }
    done = subprocess.run(
        [*command, "--ds", "tests.admin.unfold_settings"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
