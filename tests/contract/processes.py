"""Services as real processes for tests: started here, healthy before use, ended by their own handles."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.link.address import link_to
from services.redis_embedded import free_port
from services.settings import PREFIX

START_S = 120.0


class ServiceProcess:
    """`draftproof serve NAME` on a port of its own. `kill` and `start` let a test play a crash and a restart."""

    def __init__(self, name: str, log: Path, **settings: object) -> None:
        self.name = name
        self.port = free_port()
        self.endpoint = f"127.0.0.1:{self.port}"
        self.log = log
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(PREFIX)},
            **{PREFIX + key.upper(): str(value) for key, value in settings.items()},
            f"{PREFIX}{name.upper()}_PORT": str(self.port),
        }
        self.link = link_to(Path(str(settings.get("link_dir", "-"))), name, self.endpoint)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Starts it and, with `wait`, returns once it says SERVING."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "services.cli", "serve", self.name, "--follow-stdin"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        if wait:
            self.wait_healthy()

    def wait_healthy(self) -> None:
        """Watches the health stream until it says SERVING. Raises AssertionError with the log if it never does."""
        try:
            with grpc.insecure_channel(self.endpoint) as channel:
                watching = health_pb2_grpc.HealthStub(channel).Watch(
                    health_pb2.HealthCheckRequest(), timeout=START_S, wait_for_ready=True
                )
                for answer in watching:
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        watching.cancel()
                        return
        except grpc.RpcError as error:
            raise AssertionError(f"{self.name} is not healthy: {error}\n{self.log.read_text()[-3000:]}") from error

    def kill(self) -> None:
        """As a crash ends it: at once, without a word."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def stop(self) -> int:
        """Asks it to stop; its exit status."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(60)
        assert self._process.stdin is not None
        self._process.stdin.close()
        return status

    def __enter__(self) -> "ServiceProcess":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()


def children_of(pid: int) -> Mapping[int, str]:
    """Process id and command line of each child."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(status[1]) == pid:
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, IndexError):
                continue
    return found
