# Dovetail: `make demo` shows it, `make test` checks it. Both need only Python 3.11 and make.

VENV   := .venv
PYTEST := $(VENV)/bin/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-python unit lint types format bench bench-pcp bench-won bench-swarm bench-audit bench-all bench-hostile soak jepsen mutants docs site lock setup clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## run every fabric with injected faults, audit the journals, compare
	@$(VENV)/bin/dovetail demo

test: setup ## run everything that must pass: lint, types, and all tests except the soak
	@$(VENV)/bin/python tools/check.py

test-python: setup ## run all tests except the soak without the native code
	@DOVETAIL_FAST=python $(VENV)/bin/python tools/check.py tests

unit: setup ## run the quick tests, under 30 s
	@$(PYTEST) -n auto --dist worksteal -m "not system and not soak and not spark and not exhaustive"

lint: setup ## check style and likely mistakes, in Python and in the native code
	@$(VENV)/bin/python tools/check.py lint format rustfmt clippy

types: setup ## run the type checker, strict
	@$(VENV)/bin/python tools/check.py types

format: setup ## reformat the code
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

bench: setup ## measure the journal against the raw disk, receipts, and the resources of a site
	@$(VENV)/bin/python -m benchmarks.journal
	@$(VENV)/bin/python -m benchmarks.receipt
	@$(VENV)/bin/python -m benchmarks.lookup
	@$(VENV)/bin/python -m benchmarks.sizing
	@$(VENV)/bin/python -m benchmarks.otel

bench-pcp: setup ## compare the broker with mosquitto, NATS and JetStream over WebSocket (needs gcc)
	@$(VENV)/bin/python -m benchmarks.pcp

bench-won: setup ## compare a delivery chain with its signatures alone
	@$(VENV)/bin/python -m benchmarks.won

bench-swarm: setup ## compare proof of work with openssl; measure one peer, and growth
	@$(VENV)/bin/python -m benchmarks.swarm

bench-audit: setup ## compare the audit with DuckDB
	@$(VENV)/bin/python -m benchmarks.audit

bench-all: setup ## run the benchmarks and write docs/benchmarks.md (about 15 minutes)
	@$(VENV)/bin/python -m benchmarks.all

bench-hostile: setup ## measure attacks and write their tables to docs/explain/guarantees.md (about 10 minutes)
	@$(VENV)/bin/python -m benchmarks.hostile

soak: setup ## run the long tests
	@$(PYTEST) -m soak --timeout 0

jepsen: setup ## run set tests of all fabrics with real processes and faults (SECONDS=180 each, SEED=1)
	@PYTHONPATH=tests $(VENV)/bin/python -m jepsen --seconds $(or $(SECONDS),180) --seed $(or $(SEED),1) $(if $(UNUSUAL),--unusual) $(FABRIC)

mutants: setup ## mutate the lines that implement the protocols one by one, and check that a test fails (SAMPLE=0: all)
	@$(VENV)/bin/python tools/mutants.py --sample $(or $(SAMPLE),0) $(MODULE)

docs: setup ## regenerate docs/reference and the dashboards from the code
	@$(VENV)/bin/python tools/reference.py
	@$(VENV)/bin/python -m dovetail.audit.reference docs
	@$(VENV)/bin/python tools/import_graph.py --write
	@$(VENV)/bin/python tools/dashboards.py

site: ## build the documentation site in build/site; a warning or a dead link is an error
	@python=$$(tools/find-python.sh) && "$$python" tools/setup.py --only site
	@.venv-site/bin/sphinx-build -q -W --keep-going -j auto -c docs -d build/site-cache -b html . build/site
	@echo "build/site/index.html"

lock: ## resolve requirements/*.lock again (UPGRADE=1 for newer versions)
	@tools/lock.sh

setup: ## create or update .venv; every other target does this first
	@python=$$(tools/find-python.sh) && "$$python" tools/setup.py

clean: ## remove .venv and everything that was built
	@rm -rf $(VENV) .venv-* dist build demo-out bench-out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
