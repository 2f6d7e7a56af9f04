"""manage.py delayq: the verbs, what is loaded for them, and the help that a person reads."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from django_delayq.management import verbs
from django_delayq.management.commands.delayq import Command

MODULES = sorted(path.stem for path in Path(verbs.__path__[0]).glob("[!_]*.py"))
VERBS = [module.replace("_", "-") for module in MODULES]


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code of `manage.py delayq ...`, and all that it wrote."""
    with pytest.raises(SystemExit) as end:
        command = Command()
        command._called_from_command_line = True  # as ManagementUtility does
        command.run_from_argv(["manage.py", "delayq", *arguments])
    written = capsys.readouterr()
    return int(end.value.code or 0), written.out + written.err


def test_help_has_a_line_for_each_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ended(capsys, "--help")
    assert code == 0
    lines = [line.split(maxsplit=1) for line in text.partition("verbs:\n")[2].splitlines()]
    assert [line[0] for line in lines if len(line) == 2 and line[1].endswith(".")][:-1] == VERBS


@pytest.mark.parametrize(("verb", "module"), [*zip(VERBS, MODULES, strict=True)], ids=VERBS)
def test_help_of_a_verb_says_what_it_does_with_an_example(
    verb: str, module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = ended(capsys, verb, "--help")
    assert code == 0
    assert f"usage: manage.py delayq {verb}" in text
    assert f"\n  python manage.py delayq {verb}" in text
    assert "--settings" in text
    doc = import_module(f"{verbs.__name__}.{module}").__doc__ or ""
    assert doc.splitlines()[0].endswith(".")
    assert max(map(len, doc.splitlines())) <= 100


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["stats", "--nothing"]])
def test_wrong_words_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ended(capsys, *arguments)
    assert (code, "usage: manage.py delayq" in text) == (2, True)


def test_an_unknown_verb_is_refused_in_code_too() -> None:
    with pytest.raises(CommandError, match="invalid choice: 'nothing'"):
        call_command("delayq", "nothing")


@pytest.mark.django_db(transaction=True)
def test_options_of_django_may_come_before_the_verb(delayq: object) -> None:
    out = StringIO()
    call_command("delayq", "--no-color", "stats", "--json", stdout=out)
    assert out.getvalue().startswith("{")


def test_only_the_verb_that_is_used_is_loaded() -> None:
    script = (
        "import sys, django; django.setup()\n"
        "from django.core.management import call_command\n"
        "try: call_command('delayq', 'stats', '--history', 'never')\n"
        "except BaseException: pass\n"
        "print(*[name.rpartition('.')[2] for name in sys.modules if '.management.verbs.' in name])\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", script],
        env={"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert child.stdout.split() == ["stats"]
