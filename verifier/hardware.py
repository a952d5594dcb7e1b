"""The name of the hardware a target runs on, as manifests seal it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from models.cuda.device import require_device

_CPU_FACTS = Path("/proc/cpuinfo")


def hardware_profile(device: str = "cpu", threads: int = 0) -> str:
    """Processor name and count, such as "x86_64 AMD EPYC 9R14 x2" or "NVIDIA H200"; equal on equal machines.

    threads: of a pass, named where they are not one a processor ("... x2, 1 thread"), since pass times depend on them; 0 is
    one a processor. Raises InvalidArgument for what is no device, FailedPrecondition for a GPU that is not here.
    """
    if require_device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    name = ""
    if _CPU_FACTS.is_file():
        facts = _CPU_FACTS.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in facts if line.startswith("model name")), "")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    profile = f"{platform.machine()} {name or platform.processor() or 'cpu'} x{usable}"
    if threads in (0, usable):
        return profile
    return f"{profile}, {threads} thread{'s' if threads > 1 else ''}"
