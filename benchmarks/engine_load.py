"""How much of the machine others took while something was measured: what tells a quiet repeat from a disturbed one."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# /proc/stat's columns that are work of somebody: user, nice, system, irq, softirq, steal (idle and iowait left out).
_BUSY = (0, 1, 2, 5, 6, 7)


def children(pid: int) -> list[int]:
    """Processes that the process started and that are still there; none if it is gone. Linux's /proc."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for listed in lists for child in listed.split()]


def tree_seconds(pid: int) -> float:
    """CPU seconds of a process and all below it, ended ones that were waited for included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # utime, stime, cutime and cstime are fields 14 to 17; the state, field 3, is the first after the name.
    own = sum(int(ticks) for ticks in fields[11:15]) / _TICKS
    return own + sum(tree_seconds(child) for child in children(pid))


def busy_seconds() -> float:
    """CPU seconds that all of the machine's cores spent on anything, stolen ones of a virtual machine included."""
    columns = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return sum(int(columns[index]) for index in _BUSY) / _TICKS


class Others:
    """The share of all cores' time that went to processes which are not this one's or below it, since the last call."""

    def __init__(self) -> None:
        self._cores = os.cpu_count() or 1
        self._busy, self._ours, self._at = self._now()

    def share(self) -> float:
        """Within [0, 1]; from the last call (or the start) to now."""
        busy, ours, at = self._now()
        spent = max(0.0, (busy - self._busy) - (ours - self._ours))
        out = spent / max(1e-9, (at - self._at) * self._cores)
        self._busy, self._ours, self._at = busy, ours, at
        return min(1.0, out)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return busy_seconds(), tree_seconds(os.getpid()), os.times().elapsed
