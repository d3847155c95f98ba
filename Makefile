PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
AUDIT := .venv-audit/bin/pip-audit

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow bench torture soak audit pins format clean

help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## set up .venv with pinned versions (other targets do this first)

$(STAMP): pyproject.toml constraints.txt constraints-all.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -c constraints-all.txt -e '.[dev,flower,onnx,tensorboard,privacy]'
	@touch $(STAMP)

demo: $(STAMP) ## run four methods on the built-in benchmark and compare them (a few minutes)
	$(BIN)/fedwca run configs/mini-digits.toml --method source_only --method local --method fedavg --method fedwca

test: $(STAMP) ## check style and types, then run all fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --maxprocesses=4 --cov --cov-report=term:skip-covered
	$(BIN)/coverage report --include='*/fedwca/core/*' --fail-under=100

test-slow: $(STAMP) ## run the slow tests, on real data if FEDWCA_TEST_DATA is set
	$(BIN)/pytest -m slow

bench: $(STAMP) ## measure speed and scale on an idle machine (an hour; writes bench.json)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/bench.py

torture: $(STAMP) ## kill, starve, poison and fuzz the software; prints a table (half an hour)
	$(BIN)/python -m torture

soak: $(STAMP) ## inject faults into one process for half an hour; its memory must stay flat
	$(BIN)/python -m torture.soak --minutes 30

audit: ## list known vulnerabilities of the pinned versions (asks PyPI)
	test -x $(AUDIT) || { $(PYTHON) -m venv .venv-audit && .venv-audit/bin/pip install --disable-pip-version-check -q pip-audit==2.10.1; }
	$(AUDIT) --strict --disable-pip --no-deps -r constraints.txt -r constraints-all.txt

pins: $(STAMP) ## write the installed versions to constraints-all.txt
	$(BIN)/python tools/pins.py > constraints-all.new && mv constraints-all.new constraints-all.txt
	@touch $(STAMP)

format: $(STAMP) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what these targets made, except runs
	rm -rf $(VENV) .venv-audit .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* src/*.egg-info
