# `make run` and `make test` are all that a newcomer needs; `make` alone lists the rest.
#
# Nothing here needs privileges. Everything lands in .venv/ and tools/bin/, which git ignores.

PYTHON ?= python3
GO     ?= go
# Passed on to the program that a target starts: make run ARGS="--listen 127.0.0.1:9000"
ARGS   ?=

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check --quiet

# The programs that tests and benchmarks compare with. No C compiler, no other Go than the one here.
WITNESSES := $(addprefix tools/bin/,nsqd nsqlookupd nsqadmin go-nsq-consumer go-nsq-publisher \
    toxiproxy-server go-socket-client)
# Programs of Node, each with what its lock file pins.
NODE_WITNESSES := tools/bin/asyncapi/validate.mjs tools/bin/node/client.mjs
NPM_CI    := npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
GO_BUILD  := CGO_ENABLED=0 GOTOOLCHAIN=local $(GO) build -buildvcs=false -trimpath

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run setup witnesses offer-witnesses test soak-history check format bench lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- Running and testing ---------------------------------------------------------------------

run: $(VENV)/.run ## start the gateway in the foreground (ARGS="--flag value"); Ctrl-C ends it
	@exec $(BIN)/nsq-gateway serve $(ARGS)

setup: $(VENV)/.dev ## complete .venv with everything that tests and checks need

witnesses: $(WITNESSES) $(NODE_WITNESSES) ## get the programs that tests compare with: nsqd 1.3.0 and others (needs Go), Node's (needs npm)

test: setup offer-witnesses ## run every test (ARGS="-k words"); with Go, npm and Chromium, beside outside programs too
	$(BIN)/python -m pytest --numprocesses auto $(ARGS)

SOAK_ROUNDS ?= 5
SOAK_SEEDS  ?= $(shell $(PYTHON) -c 'import random; print(*random.sample(range(10**6), 10), sep=",")')

soak-history: setup witnesses ## break clients, gateway and nsqd for a quarter of an hour or so (SOAK_ROUNDS=5 SOAK_SEEDS=1,2)
	NSQ_GATEWAY_HISTORY_ROUNDS=$(SOAK_ROUNDS) NSQ_GATEWAY_HISTORY_SEEDS=$(SOAK_SEEDS) \
	    $(BIN)/python -m pytest -rP --numprocesses 2 tests/end_to_end/test_history.py -k violation $(ARGS)

check: setup ## format, lint, types, architecture; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/test_architecture.py

format: setup ## write every file as `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.bench witnesses tools/bin/steady ## measure beside the real nsqd and print ratios; needs Go and wrk
	$(BIN)/python -m benchmarks $(ARGS)

# ---- The environment -------------------------------------------------------------------------
# A stamp is younger than what it was made from; a changed list of requirements installs again.
# The package itself is installed last, in place, by the build backend that the lists pin.

# pip is what venv puts there last: a half-made environment is made again.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "nsq-gateway needs Python 3.11 or later; name one with PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	    echo "Python's venv is missing; on Debian: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements/run.txt pyproject.toml | $(BIN)/pip
	@echo "Installing what running needs into $(VENV) ..."
	$(PIP) install --require-hashes --requirement requirements/run.txt
	$(PIP) install --no-index --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	@echo "Installing what developing needs into $(VENV) ..."
	$(PIP) install --require-hashes --requirement requirements/dev.txt
	@touch $@

$(VENV)/.bench: requirements/bench.txt $(VENV)/.dev
	@echo "Installing the clients that benchmarks compare with into $(VENV) ..."
	$(PIP) install --require-hashes --requirement requirements/bench.txt
	@touch $@

# ---- The witnesses ---------------------------------------------------------------------------

tools/bin/nsqd tools/bin/nsqlookupd tools/bin/nsqadmin: tools/go.mod tools/go.sum
	cd tools && $(GO_BUILD) -o bin/$(@F) github.com/nsqio/nsq/apps/$(@F)

tools/bin/go-nsq-%: tools/%/main.go tools/measure/measure.go tools/go.mod tools/go.sum
	cd tools && $(GO_BUILD) -o bin/$(@F) ./$*

# A module of its own, so that what it needs changes nothing of what nsqd is built from.
tools/bin/toxiproxy-server: tools/toxiproxy/go.mod tools/toxiproxy/go.sum
	cd tools/toxiproxy && $(GO_BUILD) -o ../bin/$(@F) github.com/Shopify/toxiproxy/v2/cmd/server

# WebSocket clients of other people, in Go and for Node.
tools/bin/go-socket-client: tools/socket-client/main.go tools/socket-client/go.mod tools/socket-client/go.sum
	cd tools/socket-client && $(GO_BUILD) -o ../bin/$(@F) .

tools/bin/node/client.mjs: $(addprefix tools/node-clients/,client.mjs package.json package-lock.json .npmrc)
	rm -rf $(@D) && mkdir -p $(@D) && cp $^ $(@D)
	cd $(@D) && $(NPM_CI)
	@touch $@

# The load of a constant rate, which only benchmarks need.
tools/bin/steady: tools/steady/main.go tools/steady/go.mod tools/steady/go.sum
	cd tools/steady && $(GO_BUILD) -o ../bin/$(@F) .

tools/bin/asyncapi/validate.mjs: $(addprefix tools/asyncapi/,validate.mjs package.json package-lock.json .npmrc)
	rm -rf $(@D) && mkdir -p $(@D) && cp $^ $(@D)
	cd $(@D) && $(NPM_CI)
	@touch $@

# Tests do without a witness that cannot be built, and say so at their end; with CI=true they fail.
offer-witnesses:
	@if command -v $(GO) >/dev/null; then \
	    $(MAKE) --no-print-directory $(WITNESSES) \
	        || echo "WITNESS MISSING: not all could be built (see above); their tests are skipped"; \
	elif [ ! -x tools/bin/nsqd ] || [ ! -x tools/bin/toxiproxy-server ]; then \
	    echo "WITNESS MISSING: no Go to build them with; tests are skipped (Debian: golang-go)"; \
	fi
	@if command -v npm >/dev/null; then \
	    $(MAKE) --no-print-directory $(NODE_WITNESSES) \
	        || echo "WITNESS MISSING: not all of Node's could be installed (see above)"; \
	else \
	    echo "WITNESS MISSING: no npm to install Node's with; tests are skipped (Debian: npm)"; \
	fi

# ---- Upkeep ----------------------------------------------------------------------------------

# One list serves Python 3.11 to 3.14 on every platform. The others take their versions from dev.txt.
LOCK := .venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 \
    --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' --group build

lock: .venv-lock/bin/uv ## pin requirements/*.txt anew from the ranges in pyproject.toml (ARGS=--upgrade)
	$(LOCK) $(ARGS) --extra dev --output-file requirements/dev.txt pyproject.toml
	$(LOCK) --constraints requirements/dev.txt --no-annotate --output-file requirements/run.txt pyproject.toml
	$(LOCK) $(ARGS) --constraints requirements/dev.txt --extra bench --output-file requirements/bench.txt pyproject.toml

.venv-lock/bin/uv:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip --disable-pip-version-check --quiet install uv==0.13.8

clean: ## remove everything that the targets above made
	rm -rf $(VENV) .venv-lock tools/bin *.egg-info build dist .coverage
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find gateway tests -name __pycache__ -type d -prune -exec rm -rf {} +
