"""Which device a name means, and whether it is there."""

from __future__ import annotations

import torch

from contracts.errors import FailedPrecondition, InvalidArgument


def known_device(name: str) -> torch.device:
    """The device. Raises InvalidArgument for a name that means none, or none of those that have a pass here (cpu, cuda)."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InvalidArgument("device", f"{name!r} is not supported; known: cpu, cuda, cuda:N")
    return device


def require_device(name: str) -> torch.device:
    """The device, which exists. Raises as `known_device`, and FailedPrecondition saying what is missing."""
    device = known_device(name)
    if device.type == "cpu":
        return device
    if not torch.backends.cuda.is_built():
        raise FailedPrecondition(
            "device", f"{name!r} is asked for, but torch {torch.__version__} is a build without CUDA"
        )
    count = torch.cuda.device_count()
    if not torch.cuda.is_available() or count == 0:
        raise FailedPrecondition(
            "device", f"{name!r} is asked for, but no CUDA device is visible: no GPU, or no driver"
        )
    if device.index is not None and device.index >= count:
        raise FailedPrecondition(
            "device", f"{name!r} is asked for, but the last of {count} visible is cuda:{count - 1}"
        )
    return device
