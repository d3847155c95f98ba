PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
AUDIT := .venv-audit/bin

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow bench torture soak audit pins format clean

help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## set up .venv with pinned versions (the other targets do it by themselves)

$(STAMP): pyproject.toml constraints.txt constraints-all.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -c constraints-all.txt -e '.[dev,flower,onnx,tensorboard,privacy]'
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

soak: $(STAMP) ## faults injected into one process for half an hour, whose memory must stay flat
	$(BIN)/python torture/soak.py --minutes 30

audit: $(STAMP) ## list known vulnerabilities of what is installed; offline with ADVISORIES=all.zip
ifdef ADVISORIES
	$(BIN)/python tools/audit.py --advisories $(ADVISORIES)
else
	test -x $(AUDIT)/pip-audit || { $(PYTHON) -m venv .venv-audit && $(AUDIT)/pip install --disable-pip-version-check -q pip-audit==2.10.1; }
	$(BIN)/python tools/audit.py --tool $(AUDIT)/pip-audit
endif

pins: $(STAMP) ## write the versions of all that is installed into constraints-all.txt
	$(BIN)/python tools/pins.py > constraints-all.new && mv constraints-all.new constraints-all.txt
	@touch $(STAMP)

format: $(STAMP) ## put the code into the one style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what the targets above have made, but no runs
	rm -rf $(VENV) .venv-audit .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* src/*.egg-info
