"""One service in this process, as its settings say. `python -m services.start NAME` is what `up` starts.

As `draftproof serve NAME --follow-stdin`, without a command line's imports, which are a fifth of what a small service takes.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from services import garbage

# Where each service's `run` is, and the class of its settings.
_SERVICES = {
    "verifier": ("services.verifier_service.front", "VerifierSettings"),
    "proposer": ("services.proposer_service.process", "ProposerSettings"),
    "retriever": ("services.retriever_service.process", "RetrieverSettings"),
    "orchestrator": ("services.orchestrator_service.process", "OrchestratorServiceSettings"),
}


def run_service(name: str, *, follow_stdin: bool) -> None:
    """Serves until told to stop, with `follow_stdin` by the end of standard input too. Raises what its start raises."""
    from services import settings as known
    from services.logs import set_up_logging

    module, kind = _SERVICES[name]
    service: Any = importlib.import_module(module)
    settings = known.load(getattr(known, kind))
    set_up_logging(name, settings.log_level)
    service.run(settings, follow_stdin=follow_stdin)


def main() -> None:
    """Typed errors become one line and exit status 2."""
    garbage.postpone()
    from contracts.errors import DraftproofError

    try:
        run_service(sys.argv[1], follow_stdin=True)
    except DraftproofError as error:
        print(f"{type(error).code.lower()}: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
