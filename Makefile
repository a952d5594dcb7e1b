# Set-up, main job and tests. `make demo` and `make test` work on a fresh machine with Python 3.11 and nothing else.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint format stubs bench lock clean
.DEFAULT_GOAL := demo

$(READY): requirements.lock pyproject.toml scripts/bootstrap.py
	$(PYTHON) scripts/bootstrap.py .venv
	touch $@

demo: $(READY)
	$(BIN)/draftproof demo

test: $(READY)
	$(BIN)/draftproof model fetch
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

stubs: $(READY)
	$(BIN)/python scripts/generate_stubs.py

bench: $(READY)
	$(BIN)/python -m benchmarks.generate --quick --json out/generate.json
	$(BIN)/python -m benchmarks.verifiers --quick --json out/verifiers.json
	$(BIN)/python -m benchmarks.retrieval --quick --json out/retrieval.json

lock: $(READY)
	(echo "# Every package of the environment, pinned; made by 'make lock'. torch is installed first, by scripts/bootstrap.py."; \
	  $(BIN)/pip freeze --exclude-editable | sed 's/+cpu//') > requirements.lock

clean:
	rm -rf .venv .cache out
