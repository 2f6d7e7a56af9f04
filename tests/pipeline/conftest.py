"""One Spark session for all tests of the pipeline, and parameters for the servers of a test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from django_delayq.management.verbs import pipeline
from django_delayq.pipeline import params_from_django
from django_delayq.pipeline.job_errors import SparkMissing
from django_delayq.pipeline.params import Params, Storage
from tests.pipeline.calling import Call
from tests.pipeline.lakes import running_bucket
from tests.pipeline.quick import JAVA, QUICK

#: Seconds for a test. One that is ended in the middle of a call to Java leaves a session that
#: nobody can use.
TIMEOUT = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a session are run by one process: each more would start a JVM of its own."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session: local, two threads."""
    from django_delayq.pipeline.session import build_session

    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    try:
        session = build_session(
            "local[2]", java_options=JAVA, extra={**QUICK, "spark.sql.warehouse.dir": warehouse}
        )
    except SparkMissing as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(error))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def bucket() -> Iterator[dict[str, str]]:
    """The options of an empty bucket `shop`."""
    with running_bucket() as options:
        yield options


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Path of an empty lake."""
    return str(tmp_path / "lake")


@pytest.fixture
def parameters(delayq: Any, transactional_db: None, lake: str) -> Iterator[Callable[..., Params]]:
    """Makes parameters for the databases and servers of this test: parameters(job={...},
    since="...")."""
    with ExitStack() as stack:

        def make(**rest: Any) -> Params:
            return stack.enter_context(
                params_from_django.parameters(**{"lake": Storage(lake), **rest})
            )

        yield make


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Call:
    """manage.py delayq pipeline, whose jobs do nothing but remember what they were given."""
    call = Call()
    monkeypatch.setattr(pipeline, "run_job", call.job)
    monkeypatch.delenv("DELAYQ_LAKE", raising=False)
    return call
