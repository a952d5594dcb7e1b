"""How the records of a round are declared: frozen to whoever reads and checks the code, plain to the interpreter.

A dataclass that is frozen at run time sets each field by a call of its own. A round makes a dozen records before its target
runs, each twice as long in the making so, while type checkers refuse to change a field all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["record"]

if TYPE_CHECKING:
    # Type checkers know a frozen record only by this name.
    from dataclasses import dataclass as record
else:
    from dataclasses import dataclass

    def record(*, frozen: bool, **options: Any) -> Any:
        """As `dataclasses.dataclass`; `frozen` says what holds for the code. Equality and hash are those of a frozen one."""
        return dataclass(unsafe_hash=frozen and options.get("eq", True), **options)
