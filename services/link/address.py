"""Where a service's link socket lies: named in the link directory by the service, its port and the messages' format.

So services built from different records do not meet there, and speak gRPC.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path

from contracts.errors import InvalidArgument
from services.link.codec import FORMAT

# sun_path holds 108 bytes on Linux, the closing zero among them.
_MAX_BYTES = 107


def link_of(directory: Path | None, service: str, port: int) -> Path | None:
    """The socket that a service listens at; None without a link directory."""
    return None if directory is None else socket_path(directory, service, port)


def socket_path(directory: Path, service: str, port: int) -> Path:
    """Raises InvalidArgument where the path is longer than a Unix socket's may be."""
    path = directory / f"{service}-{port}-{FORMAT}.sock"
    length = len(bytes(path))
    if length > _MAX_BYTES:
        raise InvalidArgument("DRAFTPROOF_LINK_DIR", f"{path} has {length} bytes, at most {_MAX_BYTES}")
    return path


def link_to(directory: Path | None, service: str, endpoint: str) -> Path | None:
    """The socket behind an endpoint (host:port) on this machine; None without a link directory, or for another machine."""
    host, _, port = endpoint.rpartition(":")
    if directory is None or not port.isdigit() or not _is_loopback(host):
        return None
    return socket_path(directory, service, int(port))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
