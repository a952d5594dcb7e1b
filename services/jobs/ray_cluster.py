"""A connection to a Ray cluster, or a cluster on this machine, for the length of a block."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from contracts.errors import FailedPrecondition, InvalidArgument, Unavailable

LOCAL = "local"
AUTO = "auto"
_PROBE_S = 5.0


@contextmanager
def ray_cluster(address: str, *, cores: int | None = None) -> Iterator[Any]:
    """The module `ray`, connected.

    address: "local" starts a cluster on this machine (`cores` of them; None: all) and ends it with the block; "auto" or
    host:port joins one that runs. A connection that this process has already is used and left as it is.
    Raises FailedPrecondition where ray is not installed, InvalidArgument for another form of address, Unavailable where
    nobody answers.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise FailedPrecondition("ray", "is not installed: pip install 'draftproof[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "configure_logging": False}
    try:
        if address == LOCAL:
            ray.init(address=LOCAL, num_cpus=cores, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        else:
            _probe(address)
            ray.init(address=address, **quiet)
    except (ConnectionError, TimeoutError, RuntimeError) as error:
        raise Unavailable("ray", f"no cluster at {address!r}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _probe(address: str) -> None:
    """Ray itself tries an address that nobody listens on for minutes."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidArgument("ray", f"{address!r} is neither {LOCAL!r}, {AUTO!r} nor host:port")
    try:
        socket.create_connection((host, int(port)), _PROBE_S).close()
    except OSError as error:
        raise Unavailable("ray", f"nobody listens at {address}: {error}") from error
