# Everything needs Python >= 3.11 and make, and nothing else. `make help` lists what there is.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
SHELL := /bin/sh

# The first Python on the path that is new enough; `make setup PYTHON=/path/to/python` chooses another.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	command -v $$python >/dev/null 2>&1 && $$python -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$python && break; done)

# Tests start thousands of processes: where the environment forbids it to keep bytecode, each would compile every module again.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin

# A Python that the user names replaces the one that .venv was made with; without one .venv stays as it is.
ifneq ($(origin PYTHON),file)
VERSION := import sys; print(sys.version)
ifneq ($(shell $(PYTHON) -c '$(VERSION)'),$(shell $(BIN)/python -c '$(VERSION)' 2>/dev/null))
OTHER_PYTHON := other-python
endif
endif
# No wheel is built from a source archive: that would fetch build dependencies that nobody has pinned.
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip --quiet
# The same with its lines, of which a few are shown: a minute of silence looks like a fault.
PIP_LINES := $(subst --quiet,--no-color,$(PIP))
PACKAGES = $(shell sed -n 's/^\([a-z0-9][^ =]*\)==.*/\1/p' requirements/dev.txt)
PROGRESS = { count=0; while read -r word rest; do case $$word in \
	Collecting) count=$$((count + 1)); test $$((count % 20)) -ne 0 || echo "  $$count of $(words $(PACKAGES)) found";; \
	Installing) echo "  all found; writing them to $(VENV)";; esac; done; }
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	--no-emit-index-url --no-emit-find-links $(UPGRADE)

# One process more than cores, because some tests wait; slow ones mostly wait, for processes of their own: two for each core. A test that
# needs quiet has no place among them.
CORES = $$($(BIN)/python -c 'import os; print(os.cpu_count() or 1)')
PARALLEL = --dist worksteal --numprocesses $$(($(CORES) + 1))
WAITING = --dist worksteal --numprocesses $$(($(CORES) * 2))

.PHONY: help setup sbom demo demo-kafka demo-logs drill check test lint types layers unit format other-python test-crash test-crash-restarts test-crash-kafka test-crash-import test-crash-logs test-crash-destinations test-crash-archive test-differential simulate test-browser test-sdks looks pictures man bench soak docs requirements clean

help:  ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  make %-14s %s\n", $$1, $$2 }'

setup: $(VENV)/.installed  ## make .venv with the command in it, from pinned requirements

$(VENV)/.dependencies: requirements/dev.txt $(OTHER_PYTHON)
	@test -n "$(PYTHON)" || { echo "forwarder needs Python 3.11 or later; say where it is: make setup PYTHON=/path/to/python" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@echo "installing $(words $(PACKAGES)) packages of requirements/dev.txt, which takes about a minute the first time"
	@{ $(PIP_LINES) install --require-hashes --only-binary :all: -r requirements/dev.txt || touch $(VENV)/.failed; } | $(PROGRESS)
	@test ! -e $(VENV)/.failed
	@touch $@

$(VENV)/.installed: $(VENV)/.dependencies pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@echo "$(BIN)/forwarder is installed"
	@touch $@

demo: setup  ## sandbox and forwarder, with sample traffic of the official SDK; Ctrl-C prints the books
	@exec $(BIN)/forwarder demo

demo-kafka: setup  ## the same with a real Kafka broker, fetched the first time, whose topics are read
	@exec $(BIN)/forwarder demo --kafka

demo-logs: setup  ## the same with a web server's access log that grows and rotates, whose page views become events
	@exec $(BIN)/forwarder demo --logs

drill: setup  ## an outage, a kill -9 and a wrong key, held on purpose, with the books at each step; ends with all events there
	@exec $(BIN)/forwarder drill

check: lint types layers unit  ## the quick half of the tests: lint, types, layers, unit

# The tests' own Kafka is fetched before their time limits apply; KAFKA_BOOTSTRAP_SERVERS=host:port names another one to use.
$(VENV)/.broker: $(VENV)/.installed forwarder/demo/broker/jars.txt
	@test -n "$$KAFKA_BOOTSTRAP_SERVERS" || { $(BIN)/python -m forwarder.demo.broker && touch $@; }

test: lint types layers $(VENV)/.broker  ## every test but the long ones; PYTHON=python3.13 chooses the Python
	$(BIN)/pytest $(WAITING) -m "not long" $(PYTEST)

.PHONY: test-long
test-long: $(VENV)/.broker  ## the tests that `make test` leaves out: scale, and more of what its slow tests show
	$(BIN)/pytest $(WAITING) -m long $(PYTEST)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet

format: setup  ## lay out all Python files as `make lint` wants them
	$(BIN)/ruff check --select I --fix --quiet
	$(BIN)/ruff format

# mypy takes one core. On the other one pytest compiles the tests of a fresh clone, which each of its processes would do otherwise.
types: setup
	@test -d tests/__pycache__ || $(BIN)/pytest --collect-only --quiet >/dev/null 2>&1 & \
	echo $(BIN)/mypy; $(BIN)/mypy; status=$$?; wait; exit $$status

layers: setup
	$(BIN)/lint-imports

$(VENV)/.browser: $(VENV)/.installed requirements/browser.txt
	@$(PIP) install --require-hashes --only-binary :all: -r requirements/browser.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.installed requirements/docs.txt
	@$(PIP) install --require-hashes --only-binary :all: -r requirements/docs.txt
	@touch $@

docs: $(VENV)/.docs  ## the documents as a site with search, in build/site; a broken link fails
	@rm -rf build/site .cache
	$(BIN)/zensical build --strict
	@echo "open build/site/index.html; for the search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000"

unit: setup
	$(BIN)/pytest $(PARALLEL) -m "not slow and not long" --hypothesis-profile quick

test-crash: setup  ## kill the daemon 220 times under load and look for what is lost; CRASH="--seed 7 --kills 20" chooses
	$(BIN)/python -m tests.crash $(CRASH)

test-crash-restarts: setup  ## restart the daemon 180 times under load, in three ways; CRASH="--restarts 5 --workers 2" chooses
	$(BIN)/python -m tests.crash.restarts $(CRASH)

test-crash-kafka: setup  ## two forwarders, a broker and an upstream fail in turn, then a hostile hour; CRASH="--seed 7 --records 20000" chooses
	$(BIN)/python -m tests.crash.kafka $(CRASH)
	$(BIN)/python -m tests.crash.kafka --disk $(CRASH)
	$(BIN)/python -m tests.crash.kafka --hostile 40 $(CRASH)

test-crash-import: setup  ## import 1,000,000 events, as gzip and as zstd, killed 12 times each, and in 8 shards, 3 at a time, 2 killed; CRASH="--seed 7 --events 50000" chooses
	$(BIN)/python -m tests.crash.imports $(CRASH)

test-crash-destinations: setup  ## two destinations are stopped and killed in turn, then the daemon 10 times, under load; CRASH="--seed 7 --kills 3 --seconds 2" chooses
	$(BIN)/python -m tests.crash.destinations $(CRASH)

test-crash-archive: setup  ## kill a buffer with an archive 10 times under 1,000,000 events, and import its files; CRASH="--seed 7 --events 50000" chooses
	$(BIN)/python -m tests.crash.archive $(CRASH)

test-crash-logs: setup  ## follow a log of 1,000,000 lines, rotated 50 times and killed 10 times, at each level of commit; CRASH="--seed 7 --lines 50000" chooses. Before it, 500,000 lines of a week
	LINES_OF_A_WEEK=500000 $(BIN)/pytest tests/sources/logs/test_weeks.py
	$(BIN)/python -m tests.crash.logs $(CRASH)

test-differential: setup  ## a million mutants of requests, records and lines, read by this version and by another; BEFORE=../checkout names that, DIFFERENTIAL="--mutants 50000 --seed 7" chooses
	$(BIN)/python -m tests.differential --before $(BEFORE) $(DIFFERENTIAL)

simulate: setup  ## whole lives of the daemon in a simulated world, ten minutes of them; SEED=36 lives one and tells it, SIMULATE="--seconds 60" chooses
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(SIMULATE)

test-browser: $(VENV)/.browser docs  ## the pages and the documents' site in the system's Chromium: what they do, how they look, axe-core's rules
	$(BIN)/python -m tests.browser.rules
	$(BIN)/pytest tests/browser --numprocesses 2 --dist worksteal $(PYTEST)

test-sdks: $(VENV)/.browser  ## the official SDKs, from their registries, through forwarder; those whose tools aren't here are skipped by name
	$(BIN)/python -m tests.sdks.installing
	$(BIN)/pytest tests/sdks --dist loadscope --numprocesses 2 $(PYTEST)

looks: $(VENV)/.browser  ## accept how the pages look now, for test-browser to compare with; look at what changed before it is committed
	RENEW_LOOKS=1 $(BIN)/pytest tests/browser/test_looks.py

.PHONY: promises promises-guards
promises: $(VENV)/.broker  ## what the documents promise, at every entrance, as a table; PROMISES="--only Kafka replay" chooses
	$(BIN)/python -m tests.promises $(PROMISES)

promises-guards: $(VENV)/.broker  ## take out one guard after the other: does the table notice? PROMISES="--guard rules --only OTLP" chooses
	$(BIN)/python -m tests.promises.guards $(PROMISES)

.PHONY: mutation
mutation: setup  ## 60 defects, drawn from the code: which quick test finds each? MUTATION="--seed 7 --packages buffer" chooses
	$(BIN)/python -m tests.mutation $(MUTATION)

.PHONY: release-check first-hour
release-check: setup  ## build the wheel and the source archive, and prove each in a fresh environment outside the repository; RELEASE="--output dist" keeps both
	$(BIN)/python -m tests.release $(RELEASE)

first-hour: setup  ## what the README and the first tutorial say, typed in a fresh clone by a newcomer, each step with its time
	$(BIN)/python -m tests.first_hour

pictures: $(VENV)/.browser  ## make the pictures of README and docs again: both pages from real traffic, an import from a real terminal
	$(BIN)/python -m tests.browser.pictures

bench: setup  ## measure throughput and memory beside their floors; BENCH="--case single" chooses
	$(BIN)/python -m benchmarks $(BENCH)

soak: $(VENV)/.broker  ## a mixed load for an hour while the upstream fails now and then: books, memory, descriptors, latencies; SOAK="--minutes 10" chooses
	$(BIN)/python -m tests.soak $(SOAK)

man: setup  ## make the manual page and the pages of commands and keys again
	$(BIN)/python -m tests.support.manual
	$(BIN)/python -m tests.support.commands_page
	$(BIN)/python -m tests.support.configuration_pages

requirements: setup  ## compile requirements/*.txt again; UPGRADE=--upgrade takes the newest of everything
	$(COMPILE) --output-file requirements/run.txt pyproject.toml
	$(COMPILE) --output-file requirements/build.txt requirements/build.in
	$(COMPILE) --output-file requirements/dev.txt --extra demo --extra dev --extra msk --constraint requirements/run.txt --constraint requirements/build.txt pyproject.toml requirements/build.in
	$(COMPILE) --output-file requirements/full.txt --extra demo --extra import --extra kafka-demo --extra msk --constraint requirements/dev.txt pyproject.toml
	$(COMPILE) --output-file requirements/browser.txt --extra browser --constraint requirements/dev.txt pyproject.toml
	$(COMPILE) --output-file requirements/release.txt requirements/release.in
	$(COMPILE) --output-file requirements/docs.txt --constraint requirements/dev.txt requirements/docs.in
	$(COMPILE) --output-file tests/sdks/programs/python/requirements.txt --constraint requirements/dev.txt tests/sdks/programs/python/requirements.in
	$(COMPILE) --output-file tests/sdks/programs/otel-python/requirements.txt --constraint requirements/dev.txt tests/sdks/programs/otel-python/requirements.in
	$(COMPILE) --output-file tests/sdks/programs/older-python/3.7.txt tests/sdks/programs/older-python/3.7.in
	$(COMPILE) --output-file tests/sdks/programs/older-python/6.9.txt tests/sdks/programs/older-python/6.9.in
	$(COMPILE) --output-file deploy/compose/app/requirements.txt --constraint requirements/dev.txt deploy/compose/app/requirements.in

sbom: setup  ## write dist/analytics-forwarder.cdx.json: what the wheel installs, as a CycloneDX list
	@$(PYTHON) -m venv --clear $(VENV)/sbom
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)/sbom/bin/python -m pip --quiet install --require-hashes --only-binary :all: -r requirements/release.txt
	@mkdir -p dist
	$(VENV)/sbom/bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible \
		--output-file dist/analytics-forwarder.cdx.json requirements/run.txt

clean:  ## remove .venv, caches and what was built
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
