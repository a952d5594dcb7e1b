"""SHA-256 of the few hundred bytes that a round hashes at a time.

The interpreter's own implementation: OpenSSL's, which `hashlib` gives out, is eight times as fast over a file, but goes
through so much more code and data that a short hash takes twice as long where a target pass has emptied the caches.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from typing import Any, cast

# As CPython names it from 3.12 on, and before.
_MODULES = ("_sha2", "_sha256")


def _own() -> Callable[..., Any]:
    for name in _MODULES:
        try:
            return cast("Callable[..., Any]", importlib.import_module(name).sha256)
        except ImportError:
            continue
    return hashlib.sha256


# Called as hashlib.sha256 is; the object has its methods.
sha256 = _own()
