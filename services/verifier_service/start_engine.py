"""`python -m services.verifier_service.start_engine FD`: the engine process, started by the front; see engine_process.py.

A module of its own, since the garbage collector must rest before the engine's imports.
"""

from __future__ import annotations

import sys

from services import garbage

if __name__ == "__main__":
    garbage.postpone()
    from services.verifier_service.engine_process import main

    main(int(sys.argv[1]))
