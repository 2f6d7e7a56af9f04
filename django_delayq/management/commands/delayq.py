"""manage.py delayq VERB: what people do beside running workers. See management/verbs/."""

from __future__ import annotations

from argparse import REMAINDER
from importlib import import_module
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser

from .. import verbs
from ..cli import HelpFormatter


class Command(BaseCommand):
    """Hands over to a verb, which is a command of its own."""

    help = "Looks at the queue and its archive, and works on them. The worker is run_delayq."
    requires_system_checks = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """With the first line of each verb. It is read from the file, so that nothing is loaded."""
        heads = {
            verb: path.read_text(encoding="utf-8").partition("\n")[0].strip('"')
            for verb, path in _files().items()
        }
        width = max(map(len, heads)) + 2
        lines = [f"  {verb:<{width}}{head}" for verb, head in heads.items()]
        epilog = "\n".join(["verbs:", *lines, "", "delayq VERB --help says more."])
        return super().create_parser(
            prog_name, subcommand, formatter_class=HelpFormatter, epilog=epilog, **kwargs
        )

    def add_arguments(self, parser: CommandParser) -> None:
        """The verb, and what is for the verb."""
        parser.add_argument("verb", metavar="VERB", choices=list(_files()), help="see below")
        parser.add_argument(
            "arguments", metavar="...", nargs=REMAINDER, help="the options of the verb"
        )

    def run_from_argv(self, argv: list[str]) -> None:
        """Let the verb read the command line: it has Django's options and a help of its own."""
        program, command, *arguments = argv
        if arguments and arguments[0] in _files():
            verb = arguments[0]
            _load(verb).run_from_argv([program, f"{command} {verb}", *arguments[1:]])
        else:
            super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the verb for call_command("delayq", verb, ...)."""
        passed = {
            name: options[name]
            for name in ("stdout", "stderr", "no_color", "force_color", "traceback")
            if options.get(name)
        }
        call_command(_load(options["verb"]), *options["arguments"], **passed)


def _files() -> dict[str, Path]:
    paths = sorted(Path(verbs.__path__[0]).glob("[!_]*.py"))
    return {path.stem.replace("_", "-"): path for path in paths}


def _load(verb: str) -> BaseCommand:
    return import_module(f"{verbs.__name__}.{_files()[verb].stem}").Command()
