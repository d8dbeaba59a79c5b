# Python 3.10+ and Java 17+ must be there; all else goes into .venv. PYTHON= names another Python, ARGS= goes to pytest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

EXAMPLES := message-count topic-to-topic window-average unique-aircraft sessions ledger alerts pipeline quotes currencies fraud rewind

.PHONY: demo test soak bench-quick lint docs clean check-python check-java $(EXAMPLES)

demo: $(VENV)/ready
	@$(BIN)/python -m examples.exactly_once

$(EXAMPLES): $(VENV)/ready
	@$(BIN)/python -m examples.$(subst -,_,$@)

test: $(VENV)/ready
	@$(BIN)/python -m pytest -n 2 $(ARGS)

# What CI leaves out for its time: more worlds, longer chains of kills, larger clusters, each version of Spark. For hours.
# SIMULATION_WORLDS= says how many worlds.
soak: $(VENV)/ready
	@SOAK=1 $(BIN)/python -m pytest -n 2 -m soak $(ARGS); failed=$$?; $(BIN)/python -m tests.versions && exit $$failed

bench-quick: $(VENV)/ready
	@$(BIN)/python -m benchmarks.throughput --quick

lint: $(VENV)/ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy persistent_state pyspark_persistent_state monoids benchmarks examples
	@$(BIN)/codespell

# The site, in build/site: a dead link, a page that is in no menu or anything loaded from elsewhere fails.
docs: $(VENV)/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The site is in build/site: open build/site/index.html"

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/docs: $(VENV)/ready
	@echo "Setting up what builds the site: once, for some seconds..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 -e '.[docs]'
	@touch $@

# Checked every time, but no reason to install again.
$(VENV)/ready: setup.cfg pyproject.toml | check-java
	@echo "Setting up $(VENV): once, for a minute or two..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 -e '.[test]'
	@$(BIN)/python -m persistent_state.engine.archives >/dev/null
	@touch $@

check-java: check-python
	@$(PYTHON) -I persistent_state/engine/java.py

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "Python 3.10 or newer is needed, and $(PYTHON) is not: install one (for example apt-get install" \
	    "python3 python3-venv) or name one by make PYTHON=/path/to/python3." >&2; exit 1; }
