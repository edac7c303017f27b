# Everything happens in .venv; nothing outside this folder is touched.
VENV   := .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help setup run test test-deep lint format docs bench lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY)  ## create .venv with the pinned, hashed versions of constraints.txt

# uv comes first, by the same pinned hash; it then installs the rest in seconds.
$(READY): constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "Python 3.11 or newer is needed; this is %d.%d. Try: make PYTHON=python3.11 setup" % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	awk '/^[a-z]/ { wanted = /^uv==/ } wanted' constraints.txt > $(VENV)/uv.txt
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes constraints.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

run: setup  ## serve on loopback: the real Codex on a scripted model, no login
	$(BIN)/python -m pipeline serve --demo

test: setup  ## the whole test suite
	$(BIN)/python -m pytest

test-deep: setup  ## the tests that take minutes
	$(BIN)/python -m pytest -m deep

lint: setup  ## ruff, mypy strict, pyright strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright

format: setup  ## let ruff rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup  ## rewrite the generated parts of docs/, and .env.example
	$(BIN)/python docs/update.py

bench: setup  ## repeat the measurements of docs/costs.md (about ten minutes)
	$(BIN)/python -m pipeline bench --json docs/bench/server.json --svg docs/bench/picture.svg > docs/bench/server.txt
	$(BIN)/python -m pipeline bench --real > docs/bench/codex.txt
	$(BIN)/python -m pipeline bench stages > docs/bench/stages.txt
	$(BIN)/python docs/update.py

lock: setup  ## rewrite constraints.txt with the newest allowed versions
	$(BIN)/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --upgrade --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet --output-file constraints.txt

clean:  ## remove .venv and every cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
