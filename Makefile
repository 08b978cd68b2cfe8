# Each target sets up what it needs: a fresh clone needs nothing but Python 3.11 or newer and a network for pip.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
READY_DOCS := .venv/.ready_docs

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint format bench docs wheel clean

help:
	@echo "make demo       the examples, and the audit of a trained model beside its adaptive twin: out/audit/report.html (1 to 2 minutes)"
	@echo "make test       checks and the default tests (8 minutes on 2 cores)"
	@echo "make test-slow  the long tests as well"
	@echo "make bench      cost of each adaptive module beside the ordinary one, written to results/"
	@echo "make docs       the documentation site: out/site/index.html"
	@echo "make wheel      the wheel, installed into an empty environment and tried: out/dist"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	# torch first and alone: whatever else asks for it then finds the pinned one
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

$(READY_DOCS): $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $(READY_DOCS)

setup: $(READY)

demo: $(READY)
	$(BIN)/python examples
	$(BIN)/trueshift audit swin_mini --against a_swin_mini --limit 16 --shifts 4 --examples 2 --output out/audit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# worksteal: long and short tests are mixed, and a worker that is done helps the other
test: lint
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal -m slow

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python benchmarks/bench.py run speed_modules

docs: $(READY_DOCS)
	$(BIN)/mkdocs build --strict

wheel:
	PYTHON=$(PYTHON) scripts/try_wheel.sh

clean:
	rm -rf .venv out
