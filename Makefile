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

# NSQ's own programs, which the embedded broker has to serve as nsqd does.
NSQ_APPS := nsq_stat nsq_tail nsq_to_file nsq_to_nsq to_nsq
# The programs that tests and benchmarks compare with. No C compiler, no other Go than the one here.
WITNESSES := $(addprefix tools/bin/,nsqd nsqlookupd nsqd-1.2.1/nsqd nsqd-1.2.1/nsqlookupd nsqadmin go-nsq-consumer go-nsq-publisher \
    go-nsq-client toxiproxy-server go-socket-client $(NSQ_APPS))
# What looks at the chart and the image: two renderers' worth of Go, policies from PyPI.
CHART_WITNESSES := $(addprefix tools/bin/,helm kube-score pod-security)
# Programs of Node, each with what its lock file pins.
NODE_WITNESSES := tools/bin/asyncapi/validate.mjs tools/bin/node/client.mjs tools/bin/nsqjs/client.mjs \
    tools/bin/browser/package.json
# Writes and checks scripts, styles and pages; left out, aloud, where it is not installed.
BIOME     := tools/bin/browser/node_modules/.bin/biome
MARKDOWNLINT := tools/bin/browser/node_modules/.bin/markdownlint-cli2
WITH_STYLE := --config-path=tools/browser/style.jsonc --error-on-warnings
NPM_CI    := npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
GO_BUILD  := CGO_ENABLED=0 GOTOOLCHAIN=local $(GO) build -buildvcs=false -trimpath

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run setup witnesses offer-nsqd offer-witnesses spark-classes unit test verify coverage dist verify-package verify-newest verify-lowest verify-python verify-old-nsqd fuzz docs api-page traceability site hooks screenshots soak soak-history soak-crowd soak-pipeline verify-tables mutants check format bench bench-pipeline lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- Running and testing ---------------------------------------------------------------------

# `nsq-gateway`, whose status after Ctrl-C, 130, is no error of make's. It takes the shell's place,
# so that a signal reaches it once.
define SERVE_PROGRAM
import sys
from gateway.cli.main import main
sys.argv[0] = "nsq-gateway"
try:
    main()
except SystemExit as end:
    sys.exit(0 if end.code == 130 else end.code)
endef
run: export SERVE_PROGRAM := $(SERVE_PROGRAM)
run: $(VENV)/.run ## start the gateway in the foreground (ARGS="--flag value"); Ctrl-C stops it
	@exec $(BIN)/python -c "$$SERVE_PROGRAM" serve --broker-data-path data $(ARGS)

setup: $(VENV)/.dev ## create or complete .venv with all dependencies of tests and checks

witnesses: $(WITNESSES) $(CHART_WITNESSES) $(NODE_WITNESSES) tools/bin/promtool tools/bin/checkov ## install the programs that tests compare with: nsqd 1.3.0 and others (needs Go), Node's (npm), promtool (apt)

# What one test may take before it fails, with a stack for each thread; the longest needs a tenth of it.
TEST_LIMIT_S ?= 600

# Tests in tiers (CONTRIBUTING.md). `make test` needs no Spark, no browser and no checker of the chart;
# nsqd only where Go is there to build it. CI=true makes a test fail whose witness is missing.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --timeout $(TEST_LIMIT_S)
QUICK_WITNESSES := tools/bin/nsqd tools/bin/nsqlookupd
LATER_TIERS := tests/witness tests/browser tests/spark tests/chart verification

# Where images set it, each worker would compile all tests anew in each run.
unexport PYTHONDONTWRITEBYTECODE

# These tests often wait, so that a core has time for more than one worker.
QUICK_WORKERS := $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) + 1)')
QUICK_PYTEST := $(BIN)/python -m pytest --numprocesses $(QUICK_WORKERS) --timeout $(TEST_LIMIT_S)

unit: $(VENV)/.test ## run the tests that need no other process (ARGS="-k words")
	$(QUICK_PYTEST) -m "not nsqd" tests/unit $(ARGS)

test: $(VENV)/.test offer-nsqd ## run the tests of a change: in process, through sockets, and beside nsqd where Go can build it
	$(QUICK_PYTEST) --witnesses nsqd tests/unit tests/e2e tests/witness $(ARGS)

verify: setup .venv-docs offer-witnesses spark-classes ## run all other tests: nsqd, browsers, Spark, chart, packages, documents, histories
	$(PYTEST) --brokers nsqd --witnesses others --durations 20 tests/e2e $(LATER_TIERS) $(ARGS)
	$(if $(ARGS),,$(WITH_OLD_NSQD) $(OLD_NSQD_TESTS))

# nsqd 1.2.1 (docs/supported-versions.md). `make verify` runs what reads its answers: frames, HTTP,
# TLS, AUTH, discovery, delivery. `make verify-old-nsqd` runs all that needs nsqd, in seven minutes.
OLD_NSQD := $(addprefix tools/bin/nsqd-1.2.1/,nsqd nsqlookupd)
WITH_OLD_NSQD := NSQ_GATEWAY_NSQD=1.2.1 $(PYTEST) --brokers nsqd -m "nsqd and not java"
OLD_NSQD_TESTS := $(addprefix tests/witness/,protocol broker client/test_connection_upgrades.py \
    test_http_against_nsqd.py test_admin.py test_auth.py test_discovery.py) \
    $(addprefix tests/e2e/,test_delivery.py test_requeue_on_close.py client/test_channel_monitor.py)

COVERED ?= 95

coverage: $(VENV)/.test offer-nsqd ## print which lines and branches tests/unit and tests/e2e do not run, and fail below 95 %
	$(PYTEST) --cov --cov-branch --cov-report=term --cov-fail-under=$(COVERED) --brokers all tests/unit tests/e2e $(ARGS)

docs: api-page traceability site ## generate the page of /docs and tests/TRACEABILITY.md, and build the site of the documents in build/site/

api-page: setup ## generate the page of /docs, and openapi.json, from openapi.yaml
	$(BIN)/python tools/make_docs_page.py

traceability: setup ## generate tests/TRACEABILITY.md from tests/traceability.yaml
	$(BIN)/python tools/document_traceability.py

site: .venv-docs ## build the site of the documents in build/site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict

screenshots: setup witnesses ## update the pictures of the console in docs/images/; needs Chromium
	NSQ_GATEWAY_SCREENSHOTS=1 $(BIN)/python -m pytest --quiet verification/test_console_screenshots.py

SOAK_ROUNDS ?= 5
SOAK_SEEDS  ?= $(shell $(PYTHON) -c 'import random; print(*random.sample(range(10**6), 10), sep=",")')

SOAK_S ?= 1800

soak: setup witnesses ## run half an hour of mixed load, and check for leaks (SOAK_S=1800)
	NSQ_GATEWAY_SOAK_S=$(SOAK_S) $(BIN)/python -m pytest -rP --numprocesses 2 verification/test_soak.py $(ARGS)

FUZZ_S ?= 3600

fuzz: setup witnesses ## run random histories against the models for an hour each (FUZZ_S=3600 ARGS="-k http")
	NSQ_GATEWAY_FUZZ_S=$(FUZZ_S) $(BIN)/python -m pytest -rP --numprocesses auto -m fuzz $(ARGS)

soak-history: setup witnesses ## inject faults into clients, gateway and nsqd for about a quarter of an hour (SOAK_ROUNDS=5 SOAK_SEEDS=1,2)
	NSQ_GATEWAY_HISTORY_ROUNDS=$(SOAK_ROUNDS) NSQ_GATEWAY_HISTORY_SEEDS=$(SOAK_SEEDS) \
	    $(BIN)/python -m pytest -rP --numprocesses 2 verification/test_history.py -k violation $(ARGS)

soak-crowd: setup witnesses ## inject faults into networks and gateways with 20 clients of nsq.js (SOAK_ROUNDS=5 SOAK_SEEDS=1,2)
	NSQ_GATEWAY_CROWD_ROUNDS=$(SOAK_ROUNDS) NSQ_GATEWAY_CROWD_SEEDS=$(SOAK_SEEDS) \
	    $(BIN)/python -m pytest -rP --numprocesses 2 verification/test_module_crowd.py -k everything_once $(ARGS)

soak-pipeline: setup witnesses spark-classes ## kill the processes of Spark archives (SOAK_ROUNDS=5)
	NSQ_GATEWAY_SPARK_KILLS=$(SOAK_ROUNDS) $(BIN)/python -m pytest -rP --numprocesses 0 tests/spark/test_kills.py $(ARGS)

verify-tables: setup .venv-delta .venv-iceberg ## archive into Delta and Iceberg tables, and read them with Spark and DuckDB (installs two more versions of Spark, 1 GB)
	$(BIN)/python -m pytest -rP --numprocesses 0 tests/spark/test_tables_on_spark.py $(ARGS)
	$(BIN)/python -m pytest -rP --numprocesses 0 tests/spark/test_examples_on_spark.py -k delta_table $(ARGS)

MUTANTS ?= 200
SEED    ?= $(shell $(PYTHON) -c 'import random; print(random.randrange(10**6))')

mutants: $(VENV)/.test ## change the code at random places, and count how many changes the tests notice (MUTANTS=200 SEED=1)
	$(BIN)/python verification/mutants.py --count $(MUTANTS) --seed $(SEED) $(ARGS)

dist: setup ## build the wheel and the sdist in dist/
	rm -rf dist build/lib build/bdist.* *.egg-info
	$(BIN)/python -m build --no-isolation --outdir dist .

verify-package: setup witnesses ## build and install the wheel, the sdist and the npm package, and use them as a user would
	$(BIN)/python -m pytest --timeout $(TEST_LIMIT_S) verification/package $(ARGS)

# What other versions are tested with: tests that start no other programs, and need the group `test` only.
VERIFIED ?= tests/unit
# Each environment is made anew, from the ranges in pyproject.toml: a release of today counts today.
RESOLVE := .venv-lock/bin/uv pip compile --quiet --no-header --no-annotate --no-emit-index-url

verify-newest: .venv-lock/bin/uv ## run the quick tests with the newest dependencies that pyproject.toml allows
	$(call verify_versions,.venv-newest,$(PYTHON))

verify-lowest: .venv-lock/bin/uv ## run the quick tests with the lowest direct dependencies that pyproject.toml allows
	$(call verify_versions,.venv-lowest,$(PYTHON),--resolution lowest-direct)

PYTHONS ?= 3.11 3.12 3.13
# pyenv has its versions in a folder; otherwise the system's.
FOUND_PYTHON = "$$({ ls "$$(pyenv root 2>/dev/null)"/versions/$*.*/bin/python$* 2>/dev/null || command -v python$* || echo python$*; } | tail -n 1)"

verify-python: .venv-lock/bin/uv ## run the quick tests with each Python that is supported (PYTHONS="3.11 3.12 3.13")
	@for version in $(PYTHONS); do \
	    $(MAKE) --no-print-directory .verify-python-$$version || exit 1; \
	done

.verify-python-%:
	$(call verify_versions,.venv-python-$*,$(FOUND_PYTHON),--constraints requirements/dev.txt)

# $(call verify_versions,VENV,PYTHON,OPTIONS): OPTIONS are for what the project needs; the tools of the
# tests are the newest that go with it.
define verify_versions
	rm -rf $(1)
	$(2) -m venv $(1)
	$(RESOLVE) --python $(1)/bin/python $(3) --extra tracing --output-file $(1)/project.txt pyproject.toml
	$(RESOLVE) --python $(1)/bin/python --constraints $(1)/project.txt --extra tracing --group build --group test --output-file $(1)/requirements.txt pyproject.toml
	$(1)/bin/python -m pip --disable-pip-version-check --quiet install --requirement $(1)/requirements.txt
	$(1)/bin/python -m pip --disable-pip-version-check --quiet install --no-index --no-deps --no-build-isolation --editable .
	$(1)/bin/python -m pytest --numprocesses auto --timeout $(TEST_LIMIT_S) $(VERIFIED) $(ARGS)
endef

verify-old-nsqd: setup $(OLD_NSQD) tools/bin/toxiproxy-server ## run the tests that need nsqd with nsqd 1.2.1
	$(WITH_OLD_NSQD) tests/unit tests/e2e tests/witness verification/test_histories.py $(ARGS)

check: setup .venv-docs ## check format, lint, spelling, types and architecture; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@if [ -x $(BIOME) ]; then $(BIOME) check $(WITH_STYLE); \
	else echo "No Biome (make witnesses): JavaScript, CSS, HTML and JSON are not checked"; fi
	@if [ -x $(MARKDOWNLINT) ]; then $(MARKDOWNLINT); \
	else echo "No markdownlint (make witnesses): Markdown is not checked"; fi
	.venv-docs/bin/typos
	$(BIN)/python -m pytest --quiet tests/test_architecture.py

hooks: setup .venv-docs ## check each commit before it is made (pre-commit), as `make check` does
	.venv-docs/bin/pre-commit install

format: setup ## format every file as `make check` requires
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	@if [ -x $(BIOME) ]; then $(BIOME) check --write $(WITH_STYLE); \
	else echo "No Biome (make witnesses): JavaScript, CSS, HTML and JSON stay as they are"; fi

bench: $(VENV)/.bench witnesses tools/bin/steady tools/bin/nsq_to_file ## measure, compare with the real nsqd and print ratios; needs Go and wrk
	$(BIN)/python -m benchmarks $(ARGS)

bench-pipeline: override ARGS := pipeline $(ARGS)
bench-pipeline: bench ## measure the Spark pipeline only; needs Java 17

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

$(VENV)/.test: requirements/test.txt $(VENV)/.run
	@echo "Installing what \`make test\` needs into $(VENV) ..."
	$(PIP) install --require-hashes --requirement requirements/test.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.test
	@echo "Installing what developing needs into $(VENV) ..."
	$(PIP) install --require-hashes --requirement requirements/dev.txt
	@touch $@

$(VENV)/.bench: requirements/bench.txt $(VENV)/.dev
	@echo "Installing the clients that benchmarks compare with into $(VENV) ..."
	$(PIP) install --require-hashes --requirement requirements/bench.txt
	@touch $@

# ---- The witnesses ---------------------------------------------------------------------------

$(addprefix tools/bin/,nsqd nsqlookupd nsqadmin $(NSQ_APPS)): tools/go.mod tools/go.sum
	cd tools && $(GO_BUILD) -o bin/$(@F) github.com/nsqio/nsq/apps/$(@F)

# The version before, a module of its own for the same reason as below.
tools/bin/nsqd-1.2.1/nsqd tools/bin/nsqd-1.2.1/nsqlookupd: tools/nsqd-1.2.1/go.mod tools/nsqd-1.2.1/go.sum
	cd tools/nsqd-1.2.1 && $(GO_BUILD) -o ../bin/nsqd-1.2.1/$(@F) github.com/nsqio/nsq/apps/$(@F)

tools/bin/go-nsq-%: tools/%/main.go tools/measure/measure.go tools/go.mod tools/go.sum
	cd tools && $(GO_BUILD) -o bin/$(@F) ./$*

# A module of its own, so that what it needs changes nothing of what nsqd is built from.
tools/bin/toxiproxy-server: tools/toxiproxy/go.mod tools/toxiproxy/go.sum
	cd tools/toxiproxy && $(GO_BUILD) -o ../bin/$(@F) github.com/Shopify/toxiproxy/v2/cmd/server

# WebSocket clients of other people, in Go and for Node.
tools/bin/go-socket-client: tools/socket-client/main.go tools/socket-client/go.mod tools/socket-client/go.sum
	cd tools/socket-client && $(GO_BUILD) -o ../bin/$(@F) .

# Helm 3, beside the SDK of Helm 4 that the tests render with; these need Go 1.26.
tools/bin/helm: tools/helm/go.mod tools/helm/go.sum
	cd tools/helm && $(GO_BUILD) -o ../bin/$(@F) helm.sh/helm/v3/cmd/helm

tools/bin/kube-score: tools/kube-score/go.mod tools/kube-score/go.sum
	cd tools/kube-score && $(GO_BUILD) -o ../bin/$(@F) github.com/zegl/kube-score/cmd/kube-score

# Kubernetes' own pods that are "restricted", and those that are not; nothing is built.
tools/bin/pod-security: tools/pod-security/go.mod tools/pod-security/go.sum
	rm -rf $@
	cp -r "$$(cd tools/pod-security && GOTOOLCHAIN=local $(GO) mod download -json k8s.io/pod-security-admission \
	    | sed -n 's/^.*"Dir": "\(.*\)",$$/\1/p')/test/testdata/restricted/v1.37" $@
	@chmod -R u+w $@ && touch $@

# Policies, in an environment of their own: what they need is much, and older than what we need.
tools/bin/checkov: requirements/checkov.txt
	rm -rf tools/bin/checkov-venv
	$(PYTHON) -m venv tools/bin/checkov-venv
	tools/bin/checkov-venv/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --requirement $<
	ln -sf checkov-venv/bin/checkov $@
	@touch tools/bin/checkov-venv/bin/checkov

tools/bin/node/client.mjs: $(addprefix tools/node-clients/,client.mjs package.json package-lock.json .npmrc)
	rm -rf $(@D) && mkdir -p $(@D) && cp $^ $(@D)
	cd $(@D) && $(NPM_CI)
	@touch $@

tools/bin/nsqjs/client.mjs: $(addprefix tools/nsqjs/,client.mjs package.json package-lock.json .npmrc)
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

# TypeScript and Biome for the JavaScript here, axe-core for its pages, markdownlint for Markdown.
tools/bin/browser/package.json: $(addprefix tools/browser/,package.json package-lock.json .npmrc)
	rm -rf $(@D) && mkdir -p $(@D) && cp $^ $(@D)
	cd $(@D) && $(NPM_CI)
	@touch $@

# Checks alerts, and shows dashboards their data. Debian's package, unpacked and not installed: no
# service and no user come with it. Where the system has no list of packages, one is got here.
PROMETHEUS := tools/bin/prometheus-deb
APT_GET    := apt-get --quiet -o APT::Sandbox::User=root
APT_HERE    = $(APT_GET) -o Dir::State=$(CURDIR)/$(PROMETHEUS)/apt -o Dir::Cache=$(CURDIR)/$(PROMETHEUS)/apt

tools/bin/promtool:
	rm -rf $(PROMETHEUS) && mkdir -p $(PROMETHEUS)/apt/lists/partial $(PROMETHEUS)/apt/archives/partial
	@cd $(PROMETHEUS) && { $(APT_GET) download prometheus \
	    || { $(APT_HERE) update && $(APT_HERE) download prometheus; }; } >download.log 2>&1 \
	    || { cat download.log >&2; exit 1; }
	dpkg -x $(PROMETHEUS)/prometheus_*.deb $(PROMETHEUS)
	@rm -rf $(PROMETHEUS)/prometheus_*.deb $(PROMETHEUS)/apt
	ln -sf prometheus-deb/usr/bin/prometheus tools/bin/prometheus
	ln -sf prometheus-deb/usr/bin/promtool $@

# Tests do without a witness that cannot be built, and say so at their end; with CI=true they fail.
offer-nsqd:
	@if command -v $(GO) >/dev/null; then \
	    $(MAKE) --no-print-directory $(QUICK_WITNESSES) \
	        || echo "WITNESS MISSING: nsqd could not be built (see above); its tests are skipped"; \
	elif [ ! -x tools/bin/nsqd ]; then \
	    echo "WITNESS MISSING: no Go to build nsqd with; its tests are skipped (Debian: golang-go)"; \
	fi

offer-witnesses:
	@if command -v $(GO) >/dev/null; then \
	    $(MAKE) --no-print-directory $(WITNESSES) \
	        || echo "WITNESS MISSING: not all could be built (see above); their tests are skipped"; \
	    $(MAKE) --no-print-directory --keep-going $(CHART_WITNESSES) \
	        || echo "WITNESS MISSING: not all that look at the chart (see above); they need Go 1.26"; \
	elif [ ! -x tools/bin/nsqd ] || [ ! -x tools/bin/toxiproxy-server ]; then \
	    echo "WITNESS MISSING: no Go to build them with; tests are skipped (Debian: golang-go)"; \
	fi
	@if command -v npm >/dev/null; then \
	    $(MAKE) --no-print-directory $(NODE_WITNESSES) \
	        || echo "WITNESS MISSING: not all of Node's could be installed (see above)"; \
	else \
	    echo "WITNESS MISSING: no npm to install Node's with; tests are skipped (Debian: npm)"; \
	fi
	@if command -v apt-get >/dev/null && command -v dpkg >/dev/null; then \
	    $(MAKE) --no-print-directory tools/bin/promtool \
	        || echo "WITNESS MISSING: promtool could not be got (see above); its tests are skipped"; \
	else \
	    echo "WITNESS MISSING: promtool is got from Debian's package prometheus; tests are skipped"; \
	fi

	@$(MAKE) --no-print-directory tools/bin/checkov \
	    || echo "WITNESS MISSING: checkov could not be installed (see above); its tests are skipped"

# Spark's classes, written once for each Spark and Java: each session of the tests then starts seconds
# sooner. Nothing needs them, so nothing fails for want of them.
spark-classes: setup
	@if command -v java >/dev/null; then $(BIN)/python -m tests.support.spark.class_archive \
	    || echo "Spark's classes could not be written (see above); its tests take longer"; fi

# Spark 4.2 with Delta, and Spark 4.1, which Iceberg's newest module is for: some 500 MB each, for the
# tests of tables. Their first run fetches the jars of both from Maven.
.venv-delta .venv-iceberg: .venv-%: requirements/%.txt
	rm -rf $@
	$(PYTHON) -m venv $@
	$@/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --requirement $<

# What builds the site of the documents and checks spelling.
.venv-docs: requirements/docs.txt
	rm -rf $@
	$(PYTHON) -m venv $@
	$@/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --requirement $<

# ---- Upkeep ----------------------------------------------------------------------------------

# One list serves Python 3.11 and later on every platform. The others take their versions from dev.txt.
# Extras stay in the lists: without them, an older pip looks for "coverage[toml]" beside the pin, and
# refuses a release that is newer than it.
LOCK_FREE := .venv-lock/bin/uv pip compile --quiet --universal --no-strip-extras --python-version 3.11 \
    --generate-hashes --no-emit-index-url --custom-compile-command 'make lock'
LOCK := $(LOCK_FREE) --group build
# Each release of Delta is for some releases of Spark: this one brings Spark 4.2 (docs/pipeline-delta.md).
# deltalake and DuckDB read the tables without Spark.
DELTA := delta-spark==4.4.0 deltalake duckdb
# It reads what the archive has written; Iceberg has nothing for a later Spark (docs/pipeline-iceberg.md).
ICEBERG := 'pyspark>=4.1,<4.2'

lock: .venv-lock/bin/uv ## update the pins in requirements/*.txt from the ranges in pyproject.toml (ARGS=)
	$(LOCK) $(ARGS) --group dev --output-file requirements/dev.txt pyproject.toml
	$(LOCK) --constraints requirements/dev.txt --no-annotate --output-file requirements/run.txt pyproject.toml
	$(LOCK) --constraints requirements/dev.txt --no-annotate --group test --output-file requirements/test.txt pyproject.toml
	$(LOCK) --constraints requirements/dev.txt --no-annotate --extra tracing --output-file requirements/image.txt pyproject.toml
	$(LOCK) --constraints requirements/dev.txt --no-annotate --extra tracing --extra spark --output-file requirements/image-spark.txt pyproject.toml
	$(LOCK) $(ARGS) --constraints requirements/dev.txt --group bench --output-file requirements/bench.txt pyproject.toml
	$(LOCK_FREE) $(ARGS) --no-annotate --group docs --output-file requirements/docs.txt
	echo 'checkov>=3.3' | $(LOCK_FREE) $(ARGS) --no-annotate --output-file requirements/checkov.txt -
	printf '%s\n' $(DELTA) | $(LOCK_FREE) $(ARGS) --no-annotate --extra spark --output-file requirements/delta.txt pyproject.toml -
	printf '%s\n' $(ICEBERG) | $(LOCK_FREE) $(ARGS) --no-annotate --output-file requirements/iceberg.txt -

.venv-lock/bin/uv:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip --disable-pip-version-check --quiet install uv==0.13.8

clean: ## remove everything created by the targets above
	rm -rf $(VENV) .venv-docs .venv-lock .venv-delta .venv-iceberg .venv-newest .venv-lowest .venv-python-* tools/bin *.egg-info build dist .coverage
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find gateway pyspark_nsq tests verification tools -name __pycache__ -type d -prune -exec rm -rf {} +
