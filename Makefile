# The two commands: `make demo` grades a small class; `make test` passes the tests. Each sets up everything it needs first.
VENV := .venv
BIN := $(VENV)/bin
# The first of these that runs and is new enough makes the environment; `make PYTHON=/path/to/python3.12 setup` overrides.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && { echo $$p; break; }; done)
export OMP_NUM_THREADS ?= 1
# Tests at the same time, each in one thread; about 3 GB of memory apiece.
JOBS ?= 2

.PHONY: setup system full demo test lab build clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    set up, then grade a small class of right, wrong, broken and hostile submissions"
	@echo "make test    set up, then run all tests"
	@echo "make lab     set up, copy levels/ to work/ (never overwriting) and open JupyterLab there"
	@echo "make setup   only set up;   make build   rebuild the notebooks from solutions/*/*.py"

setup: $(VENV)/ready system

$(VENV)/ready: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.11 to 3.13 with the venv module was found. On Debian or Ubuntu: apt-get install python3 python3-venv"; exit 1; }
	@echo "making $(VENV)/: some minutes and about 2 GB, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $(VENV)/ready

# bubblewrap holds untrusted submissions; chromium is only needed by the browser tests. Installed where this may be done without asking.
system:
	@for pair in bwrap:bubblewrap $$(test ! -d tests || echo chromium:chromium); do command=$${pair%%:*}; package=$${pair##*:}; \
	if command -v $$command >/dev/null 2>&1; then continue; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && [ -f /etc/debian_version ]; then \
		echo "installing $$package"; (apt-get install -y -qq $$package || { apt-get update -qq && apt-get install -y -qq $$package; }) >/dev/null 2>&1 \
			|| echo "could not install $$package; 'course doctor' says what that means"; \
	else echo "$$package is not installed ($$command not found); 'course doctor' says what that means. On Debian or Ubuntu: sudo apt-get install $$package"; fi; done

# What needs solutions, hidden checks and tests, asked before anything is installed for it.
full:
	@test -d solutions || { echo "this is the students' edition: it has no solutions, hidden checks or tests; start with: make lab"; exit 2; }

demo: full setup
	$(BIN)/course demo

test: full setup
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lab: setup
	$(BIN)/course lab

build: full setup
	$(BIN)/course build

clean:
	rm -rf $(VENV) build *.egg-info
