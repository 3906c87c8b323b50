# `make demo` shows Guildry at work; `make test` runs every test and check. Both set up what they
# need in .venv, once. Needed: Python >= 3.11, git and make. `PYTHON=/path make ...` picks a Python.

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test check pytest wheel conformance fuzz docs bench clean

help:
	@echo 'make demo         set up, then the main job on this folder, without a model'
	@echo 'make test         set up, then every test and check'
	@echo 'make check        linter, formatter and both type checkers alone'
	@echo 'make conformance  the official conformance suite alone, as a table'
	@echo 'make fuzz         100,000 broken messages to a real server, about 3 minutes'
	@echo 'make docs         write the tables of the README anew'
	@echo 'make bench        measure beside the peers, about 25 minutes'
	@echo 'make clean        remove what was set up'

setup: $(READY)

$(READY): pyproject.toml tests/node/package.json .ci/setup
	@.ci/setup $(VENV)
	@touch $@

demo: $(READY)
	@$(BIN)/guildry demo

test: check pytest wheel

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pyright

pytest: $(READY)
	$(BIN)/pytest -q

wheel: $(READY)
	@.ci/wheel $(VENV)

conformance: $(READY)
	@$(BIN)/python tests/live/conformance.py

fuzz: $(READY)
	@$(BIN)/python tests/fuzz/fuzzer.py

docs: $(READY)
	@$(BIN)/python -m guildry.server.commands.reference README.md docs/architecture.md

bench: $(READY)
	@$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) dist tests/node/node_modules
