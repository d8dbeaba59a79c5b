# Python 3.10+ and Java 17+ must be there; all else goes into .venv. PYTHON= names another Python, ARGS= goes to pytest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Each target installs what it needs, once: an extra of setup.cfg, with the file .venv/with-EXTRA to show for it.
UV := $(shell command -v uv 2>/dev/null)
INSTALL = $(if $(UV),$(UV) pip install --quiet --compile-bytecode --python $(BIN)/python,\
  $(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517)
# Spark's workers start faster from compiled archives.
COMPILE = [ $(VENV)/compiled -nt setup.cfg ] || { $(BIN)/python -m persistent_state.engine.spark.archives >/dev/null && touch $(VENV)/compiled; }
with = $(foreach extra,$(1),$(VENV)/with-$(extra))

EXAMPLES := message-count topic-to-topic window-average unique-aircraft sessions ledger alerts pipeline quotes currencies fraud rewind

# tests/lanes.py says what each lane is.
LANES := spark kills kafka stores browser worlds release
# How long each test took. A part of a lane writes none.
REPORT = $(if $(ARGS),,--junitxml=build/tests/$(1).xml)

# Many images of containers let Python keep no compiled files: each process of a test would compile the library again.
export PYTHONDONTWRITEBYTECODE :=

# Two installations at once would break the environment.
.NOTPARALLEL:

.PHONY: demo test test-all test-others soak bench-quick lint docs setup clean check-python check-java $(EXAMPLES) $(LANES:%=test-%)

demo: $(call with,demo)
	@$(BIN)/python -m examples.exactly_once

$(EXAMPLES): $(call with,examples)
	@$(BIN)/python -m examples.$(subst -,_,$@)

# The lane that people run: nothing but Python and Java.
test: $(call with,test)
	@$(BIN)/python -m pytest -n 2 --lane fast $(call REPORT,fast) $(ARGS)

# One more lane: make test-spark, ...
test-kills test-stores: $(call with,servers)
test-release: $(call with,release)
$(LANES:%=test-%): test-%: $(call with,test)
	@$(BIN)/python -m pytest -n 2 --lane $* $(call REPORT,$*) $(ARGS)

# One run of pytest, so that no core is idle at the end of each lane.
test-all: $(call with,test servers release)
	@$(BIN)/python -m pytest -n 2 $(call REPORT,all) $(ARGS)

# All lanes but the fast one, which CI has run before.
test-others: $(call with,test servers release)
	@$(BIN)/python -m pytest -n 2 $(LANES:%=--lane %) $(call REPORT,others) $(ARGS)

# What CI leaves out for its time: more worlds, longer chains of kills, larger clusters, each version of Spark. For hours.
# SIMULATION_WORLDS= says how many worlds.
soak: $(call with,test servers release)
	@SOAK=1 $(BIN)/python -m pytest -n 2 -m soak $(ARGS); failed=$$?; $(BIN)/python -m tests.versions && exit $$failed

bench-quick: $(call with,benchmarks)
	@$(BIN)/python -m benchmarks.throughput --quick

lint: $(call with,lint)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy persistent_state pyspark_persistent_state monoids benchmarks examples
	@$(BIN)/codespell

# The site, in build/site: a dead link, a page that is in no menu or anything loaded from elsewhere fails.
docs: $(call with,docs)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The site is in build/site: open build/site/index.html"

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Everything that any target needs, in one installation.
setup: | $(VENV)/made
	@echo "Installing what all targets need: once, for some minutes..."
	@$(INSTALL) -e '.[examples,test,servers,release,lint,docs,benchmarks]'
	@$(COMPILE)
	@touch $(call with,demo examples test servers release lint docs benchmarks)

$(VENV)/with-%: setup.cfg pyproject.toml | $(VENV)/made
	@echo "Installing what '$*' needs into $(VENV), once. The first time this takes a minute or two: PySpark is 450 MB..."
	@$(INSTALL) -e '.[$*]'
	@$(COMPILE)
	@touch $@

# Java is checked every time, but is no reason to install again.
$(VENV)/made: | check-java
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

check-java: check-python
	@$(PYTHON) -I persistent_state/engine/spark/java.py

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "Python 3.10 or newer is needed, and $(PYTHON) is not: install one (for example apt-get install" \
	    "python3 python3-venv) or name one by make PYTHON=/path/to/python3." >&2; exit 1; }
