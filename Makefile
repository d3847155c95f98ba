PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow bench torture format clean

help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## set up .venv with pinned versions (the other targets do it by themselves)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev,flower,onnx,tensorboard,privacy]'
	@touch $(STAMP)

demo: $(STAMP) ## run four methods on the embedded benchmark and compare them (a few minutes)
	$(BIN)/fedwca run configs/mini-digits.toml --method source_only --method local --method fedavg --method fedwca

test: $(STAMP) ## check style and types, then run all fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --maxprocesses=4 --cov --cov-report=term:skip-covered --cov-report=json:.coverage.json
	$(BIN)/python tests/core_is_covered.py .coverage.json

test-slow: $(STAMP) ## run the minutes-long tests, on real data where FEDWCA_TEST_DATA points to it
	$(BIN)/pytest -m slow

bench: $(STAMP) ## measure speed and scale on a quiet machine (an hour; numbers also in bench.json)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/bench.py

torture: $(STAMP) ## kill, starve, poison and fuzz our own software; a table of what held (half an hour)
	$(BIN)/python torture/torture.py

format: $(STAMP) ## put the code into the one style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what the targets above have made, but no runs
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* src/*.egg-info
