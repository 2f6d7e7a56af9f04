"""A cluster of Spark on this machine."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.databases.processes import Child
from tests.pipeline import outside
from tests.servers import PORTS


class Cluster:
    """A master and two workers with a core each, on this machine."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.port = secrets.choice(PORTS)
        self.home = outside.spark_home(folder)
        self.url = f"spark://127.0.0.1:{self.port}"

    def start(self, name: str, *arguments: str) -> Child:
        """One of Spark's daemons. It ends with the test process."""
        words = [f"{name}={value}" for name, value in self.environment.items()]
        spark = [
            str(self.home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{name.lower()}.{name}",
        ]
        names = ("JAVA_HOME", "PATH", "LANG")
        kept = [
            f"{name}={value}"
            for name, value in outside.plain_environment().items()
            if name in names
        ]
        command = [
            "/usr/bin/env",
            "-i",
            *kept,
            *words,
            *spark,
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            *arguments,
        ]
        return Child(command, self.folder / f"{name}.log")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Until its end, with two workers."""
        with ExitStack() as stack:
            master = self.start("Master", "--port", str(self.port))
            stack.callback(master.end, 9)
            outside.wait_for(self.port)
            for number in range(2):
                folder = f"{self.folder}/w{number}"
                size = ("--cores", "1", "--memory", "1g", "--work-dir", folder)
                stack.callback(self.start("Worker", *size, self.url).end, 9)
            yield

    def submit(self, *arguments: str) -> outside.Ended:
        """As on a cluster, with the deploy mode that spark-submit has by default."""
        command = [
            str(self.home / "bin" / "spark-submit"),
            "--master",
            self.url,
            "--driver-memory",
            "512m",
        ]
        return outside.run([*command, *arguments], self.environment, self.folder)
