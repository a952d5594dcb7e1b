"""Log lines on standard error, one a line, with the service's name."""

from __future__ import annotations

import logging


def set_up_logging(service: str, level: str) -> None:
    """Called once a process, before anything logs."""
    logging.basicConfig(
        level=level.upper(), format=f"%(asctime)s %(levelname)s {service} %(name)s: %(message)s", force=True
    )
    # grpc logs each refused connection attempt of a peer that is restarting.
    logging.getLogger("grpc").setLevel(logging.ERROR)
