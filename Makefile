# Everything a contributor types. Each target does its own set-up; nothing is installed outside this folder and the
# cache of built control-plane binaries ($QUEUECTL_CACHE, else ~/.cache/queuectl).

PYTHON ?= python3
VENV := .venv
# uv lives beside the environment it manages, so that neither removes the other.
TOOLS := .tools
UV := $(TOOLS)/bin/uv
RUN := $(VENV)/bin
PYTEST_ARGS ?=
# Some of the tests only: make test-system TESTS=tests/system/test_gangs.py
TESTS ?=
# Empty is off. Images of Python often set it; each process of the tests would then compile everything it imports anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup lint lint-workflows audit test test-fast test-system test-operations test-docs test-faults test-gpus test-kinds race test-devices test-versions explore fuzz chaos soak demo bench bench-scale e2e-real training-picture corpus traces calibration image test-image dist release dashboards manifests pictures recording docs vendor test-browser clean controlplane operators

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort

setup: $(VENV)/.ready ## make .venv with everything in uv.lock

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else None'
	@echo "setup: installing uv"
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.8

$(VENV)/.ready: pyproject.toml uv.lock | $(UV)
	@echo "setup: syncing the environment"
	@$(UV) sync --frozen --quiet --compile-bytecode --python $(PYTHON)
	@touch $@

lint: setup ## ruff, mypy, import contracts, prose, names, known vulnerabilities if the database of them answers
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy
	$(RUN)/lint-imports --no-cache
	$(RUN)/python -m tests.prose
	$(RUN)/python -m tests.names
	$(RUN)/python -m tests.support.audit

audit: setup ## known vulnerabilities of the packages in uv.lock; fails if their database does not answer
	$(RUN)/python -m tests.support.audit --required

# Versions of GitHub's schemas come with the checker.
SCHEMA := $(UV) tool run --quiet check-jsonschema==0.39.0 --builtin-schema
lint-workflows: setup ## the workflows by actionlint, the templates of issues and the configuration of Renovate by their schemas
	$(RUN)/python -m tests.support.workflows
	$(SCHEMA) vendor.renovate .github/renovate.json
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA) vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml

controlplane: setup
	@$(RUN)/queuectl localcluster build

operators: setup
	@$(RUN)/queuectl localcluster build --operators

test: test-fast test-system ## all tests; builds the control plane the first time

# A worker that dies fails its test and ends the run. Four workers on two cores: half of the time tests wait for a database, a lease
# or a process. Each worker collects and runs its own files, as tests/longest.py says.
test-fast: setup ## everything that needs no control plane
	$(RUN)/python -m pytest -p tests.longest $(TESTS) -m "not system and not bench and not faults and not gpus and not image and not real and not operations and not browser and not kinds" \
	  -n 4 --dist each --max-worker-restart=0 $(PYTEST_ARGS)

# In four groups that share control planes, as tests/system/groups.py says, and one worker for each. Four workers on two cores: they
# wait a lot, for gangs that run, windows that pass, and leases that end. Tests that simulate in real time run after them, alone.
test-system: controlplane ## on a real control plane, with a real Prometheus
	$(RUN)/python -m pytest -p tests.system.groups -p tests.system.own_groups $(or $(TESTS),tests/system tests/cluster tests/utilization tests/kinds/test_life_cycle.py) -m "system and not bench and not browser and not docs and not faults and not gpus and not kinds$(if $(TESTS),, and not alone)" \
	  -n 4 --dist each --max-worker-restart=0 $(PYTEST_ARGS)
	$(if $(TESTS),,$(RUN)/python -m pytest tests/utilization -m alone $(PYTEST_ARGS))

# pgbouncer is Debian's package of that name; its tests are skipped without it.
test-operations: controlplane ## installation with each value of the chart, the wheel with each extra, takeover from Kueue, upgrade, backup, restore, removal, PgBouncer, TLS to the database, nodes of an autoscaler, and a gang on 512 nodes; fifteen minutes
	$(RUN)/python -m pytest $(or $(TESTS),tests/operations tests/packaging tests/db/test_bundled_database.py) -m operations $(PYTEST_ARGS)

test-browser: controlplane ## the dashboard in a real Chromium, also on a real control plane; three minutes
	$(RUN)/python -m pytest -p tests.system.groups $(or $(TESTS),tests/web tests/oidc tests/system) -m browser \
	  -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 $(PYTEST_ARGS)

test-docs: operators ## the commands of every page of the documentation, and the demo of the README, on a real control plane; ten minutes
	$(RUN)/python -m pytest -p tests.system.groups $(or $(TESTS),tests/system/docs tests/system/test_demo.py) -m "docs and not gpus" \
	  -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 $(PYTEST_ARGS)

test-faults: controlplane ## the controller killed at every step, and losses of the API server, the database and local clusters, on a real control plane; a quarter of an hour
	EVERY_KILL=1 $(RUN)/python -m pytest -p tests.system.groups $(or $(TESTS),tests/control tests/cluster tests/system) -m "faults or kills" -n 0 $(PYTEST_ARGS)

test-gpus: controlplane ## claims for devices, MIG and the health of GPUs on a real control plane; five minutes
	$(RUN)/python -m pytest -p tests.system.groups $(or $(TESTS),tests/control tests/system tests/utilization) -m gpus \
	  -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 $(PYTEST_ARGS)

test-kinds: operators ## each job kind and feature with its real operator, with hostile changes, and write docs/reference/kinds.md; a quarter of an hour; KIND=TFJob
	$(RUN)/python -m pytest -p tests.kinds.record -p tests.system.groups $(or $(TESTS),tests/kinds tests/cluster tests/control tests/system/test_own_kind.py) -m kinds -n 0 $(if $(KIND),--kind=$(KIND)) $(PYTEST_ARGS)

GANGS_RACE ?= 300
race: operators ## random gangs of seven kinds on 128 nodes with the real operators, and queuectl's writes for each; ten minutes; GANGS_RACE=300
	@$(RUN)/python -m tests.kinds.race $(GANGS_RACE)

test-devices: controlplane ## random gangs with claims for devices: kube-scheduler binds each pod; GANGS=1000 SEED=1
	@GANGS=$(GANGS) SEED=$(SEED) $(RUN)/python -m tests.allocator

test-versions: setup ## the protocol on each supported version of Kubernetes; builds them the first time, half an hour each time
	$(RUN)/python -m pytest $(or $(TESTS),tests/versions) -m system -n 0 $(PYTEST_ARGS)

ROUNDS ?= 5
# SECONDS is a variable of bash, too; make reads the one of its command line.
fuzz: setup ## mutated objects of all kinds, documents, requests, selectors and mixed snapshots on their whole path: SECONDS=3600 SEED=; prints how to repeat an input
	$(RUN)/python -m tests.fuzz --seconds $(or $(SECONDS),3600) --seed "$(SEED)"

explore: setup ## every property test on fresh examples, ROUNDS=5 times over, and all seeds of the exhaustive searches
	@$(RUN)/pytest -q -m "seeds and not system" -n 2 --hypothesis-profile=fresh $(PYTEST_ARGS)
	@set -e; for round in $$(seq $(ROUNDS)); do echo "explore: round $$round of $(ROUNDS)"; \
	  $(RUN)/pytest -q -m "hypothesis and not system and not bench and not operations" -n 2 --hypothesis-profile=fresh $(PYTEST_ARGS); done

# Everything runs in namespaces, which end with the target.
e2e-real: setup ## on real kubelets, containers and networks; needs root; 22 minutes; KEEP=1 starts a cluster and a shell
	$(RUN)/python -m tests.real.sandbox $(if $(KEEP),$(RUN)/python -m tests.real.shell,\
	  $(RUN)/python -m pytest $(or $(TESTS),tests/real) -m real $(PYTEST_ARGS))

training-picture: setup ## draw docs/images/resumed-training.svg from the last run of tests/real/test_training.py
	@$(RUN)/python -m tests.real.loss_curves

REF ?=
image: setup ## build the image into build/image as an OCI archive; REF=a commit instead of the working tree
	@$(RUN)/python -m tests.image --ref "$(REF)"

test-image: setup ## build the image, and run it under runc with a read-only root file system
	$(RUN)/pytest -m image -n 0 tests/image $(PYTEST_ARGS)

dist: setup ## build the sdist, the wheel, the SBOM and the archive for krew into build/dist
	rm -rf build/dist
	$(UV) build --quiet --out-dir build/dist
	$(RUN)/python -m tests.packaging.sbom build/dist/queuectl.cdx.json
	$(RUN)/python -m tests.packaging.krew build/dist

release: setup ## commit and tag a release: VERSION=1.2.3
	@$(RUN)/python -m tests.packaging.release "$(VERSION)"

chaos: controlplane ## random faults on a real control plane under load, for an hour; DURATION=600 SEED=1
	@DURATION=$(DURATION) SEED=$(SEED) $(RUN)/python -m tests.chaos

soak: controlplane ## 30,000 gangs in an hour with faults: what the processes keep stays flat; DURATION=600 GANGS=2000 SEED=1; RECORD=1 appends to tests/chaos/soak.jsonl
	@DURATION=$(DURATION) GANGS=$(GANGS) SEED=$(SEED) RECORD=$(RECORD) $(RUN)/python -m tests.chaos.soak

# A plan of files comes first: it needs no control plane, and the first build of one takes minutes.
PLANNED := $(foreach name,nodes queues job pytorchjob,-f docs/examples/$(name).yaml)
demo: setup ## a plan of example files; then a real control plane, built the first time, a rush of gangs, a minute; KEEP=1 leaves it up
	@echo "$$ queuectl plan $(PLANNED)"
	@$(RUN)/queuectl plan $(PLANNED)
	@$(RUN)/queuectl demo $(if $(KEEP),--keep)

bench: controlplane ## most figures of the pages of benchmarks in docs/explanation; more than an hour; RECORD=1 appends to the history
	$(RUN)/python -m tests.bench $(if $(RECORD),--record)

# Snapshots are in SCALE_DIR, else in queuectl/scale of the cache folder of the user, with the results unless RECORD=1.
SYSTEM ?= queuectl
NODES ?= 10000
ROWS ?=
bench-scale: controlplane ## one system on up to 10,000 simulated nodes, at most an hour: SYSTEM=floor NODES=2500 ROWS=a,b SCALE_ARGS="--run 2"; RECORD=1 appends to tests/bench/scale/runs.jsonl; python -m tests.bench.scale table
	@RECORD=$(RECORD) $(RUN)/python -m tests.bench.scale run --system $(SYSTEM) --nodes $(NODES) --rows "$(ROWS)" $(SCALE_ARGS)

# Plans may differ, but not be worse: make corpus SCORE=1
corpus: setup ## plan the recorded snapshots and compare with the recorded plans, as docs/contributing.md says
	$(RUN)/python -m tests.corpus.check $(if $(SCORE),--score)

TRACES ?=
PLANNER ?=
calibration: setup ## compare expected starts with those of published traces: TRACES=FOLDER; RECORD=1 writes docs/explanation/expected-starts.md
	$(RUN)/python -m tests.traces.calibration "$(TRACES)" $(if $(RECORD),--record)

traces: setup ## simulate published traces and compare with the reference: TRACES=FOLDER PLANNER="ITP 03" BACKFILL="ITP" RULES="ITP 07"; RECORD=1 writes docs/explanation/simulated-traces.md
	$(RUN)/python -m tests.traces.compare "$(TRACES)" --planner "$(PLANNER)" --backfill "$(BACKFILL)" \
		$(if $(RULES),--rules "$(RULES)") $(if $(RECORD),--record)

dashboards: setup ## write deploy/chart/dashboards/*.json from deploy/grafana/dashboards
	$(RUN)/python -m deploy.grafana.dashboards

manifests: setup ## render deploy/base, deploy/older-servers, deploy/optional and the page of the values from deploy/chart
	$(RUN)/python -m tests.support.chart

pictures: controlplane ## render the pictures of Grafana and the dashboard from a run of a local cluster; ten minutes
	$(RUN)/python -m tests.system.pictures

recording: controlplane ## draw docs/images/demo.svg from a run of the demo
	$(RUN)/python -m tests.system.recording

docs: setup ## build the documentation site in build/site
	@NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build

vendor: setup ## fetch the dashboard's vendored files anew through npm and compare their digests
	$(RUN)/python -m queuectl.web.vendor

clean: ## remove what setup made here
	rm -rf $(VENV) $(TOOLS) .mypy_cache .ruff_cache .pytest_cache .hypothesis
