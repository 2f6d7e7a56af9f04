"""Print the Redis users that this project needs, one for each role.

Nothing is sent to Redis: look at the lines, put a password in place of PASSWORD, and run them on
each node (or write them into its ACL file). The rights fit the settings of this project:
PREFIX, the database, Sentinel or Cluster, WAIT_REPLICAS.

  producer   web processes that enqueue, cancel and wait for results
  worker     run_delayq --no-archiver
  archiver   run_delayq, and run_delayq --archiver; the operators' pages that change something
  viewer     dashboards that only read

  python manage.py delayq acl
  python manage.py delayq acl --role producer
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any
from urllib.parse import urlsplit

from ...core.conf import get_settings
from ...store.acl import ROLES, rights_of, setuser, setuser_of_sentinel
from ..cli import Answer, Verb


class Command(Verb):
    """Writes lines for redis-cli."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which role."""
        parser.add_argument("--role", choices=sorted(ROLES), help="only this one (default: all)")
        parser.add_argument(
            "--no-check",
            action="store_true",
            help="without the rights of `check --deploy` (INFO and CONFIG GET)",
        )

    def run(self, options: dict[str, Any]) -> Answer:
        """One line for each role."""
        settings = get_settings()
        where = urlsplit(settings.redis) if "://" in settings.redis else None
        scheme = where.scheme if where else ""
        uses = [] if options["no_check"] else ["check"]
        if where is None or where.path.strip("/").rpartition("/")[2] not in ("", "0"):
            uses.append("database")
        if settings.wait_replicas:
            uses.append("replicas")
        if scheme.endswith("+cluster"):
            uses.append("cluster")
        roles = [options["role"]] if options["role"] else list(ROLES)
        lines = {
            role: setuser(f"{settings.prefix}-{role}", settings.prefix, rights_of(role, *uses))
            for role in roles
        }
        if scheme.endswith("+sentinel"):
            lines["sentinel"] = setuser_of_sentinel(f"{settings.prefix}-sentinel")
        return Answer(text="\n".join(lines.values()), data=lines)
