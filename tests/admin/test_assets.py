"""What is served with the pages keeps to a strict policy, and its colours can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import django_delayq

PACKAGE = Path(django_delayq.__file__).parent
STATIC = PACKAGE / "static" / "django_delayq"
TEMPLATES = sorted((PACKAGE / "templates" / "django_delayq").glob("*.html"))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_template_has_what_a_strict_policy_refuses(template: Path):
    assert not re.search(
        r"<style|\sstyle=|\son\w+=|<script>|javascript:|https?://|\|safe\b", template.read_text()
    )


def test_our_script_and_style_fetch_nothing_from_elsewhere():
    for path in (*STATIC.glob("*.js"), *STATIC.glob("*.css")):
        assert not re.search(
            r"https?://|@import|\burl\(|\beval\(|new Function", path.read_text()
        ), path.name


def test_uplot_is_the_version_that_is_named_with_its_licence():
    vendored = STATIC / "vendor" / "uplot"
    assert "uPlot (v1.6.32)" in (vendored / "uPlot.iife.min.js").read_text()[:300]
    assert "uPlot 1.6.32" in (vendored / "README.md").read_text()
    assert "Leon Sorokin" in (vendored / "LICENSE").read_text()
    assert "sourceMappingURL" not in (vendored / "uPlot.iife.min.js").read_text()


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(
    ("block", "grounds"),
    [(":root {", ("#ffffff", "#f8f8f8")), ('html[data-theme="dark"],', ("#121212", "#212121"))],
)
def test_every_colour_can_be_read_on_both_grounds(block: str, grounds: tuple[str, ...]):
    rules = (STATIC / "delayq.css").read_text().split(block)[1].split("}")[0]
    colours = re.findall(r"--delayq-(?:ok|warn|err|run|quiet): (#\w{6})", rules)
    assert len(colours) == 5
    for colour in colours:
        for ground in grounds:
            darker, lighter = sorted((luminance(colour), luminance(ground)))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, f"{colour} on {ground}"
