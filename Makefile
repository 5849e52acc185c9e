# Two commands are all a newcomer needs: `make demo` and `make test`. Both make their own environment first.
# With another Python: `make test PYTHON=/path/to/python3.13`; the environment is made anew, and kept until another is named.
PYTHON ?= $(or $(shell cat .venv/.ready 2>/dev/null),python3)
UV     := .uv/bin/uv
RUN    := .venv/bin
UVENV  := UV_PROJECT_ENVIRONMENT=$(CURDIR)/.venv

.PHONY: docs docs-wheel hang-picture help release release-tools client test-bare programs browser kept pictures slow-ranks code-large demo demo-fleet demo-pipeline test heavy ddp stops gpu integrations slurm kubernetes s3 tools lint types imports bench bench-keep bench-peers costs curves profile soak clean env anew

##@ Begin
# Each target's own line says what it does; lines with ##@ are the headings.
help:           ## this list
	@awk 'BEGIN { print "make TARGET [PYTHON=/path/to/python3.13] [WORKERS=2]. Each target makes the environment that it needs, once." } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { \
	    name = $$0; sub(/:.*/, "", name); text = $$0; sub(/.*## /, "", text); \
	    count = split(text, words, " "); line = ""; \
	    for (i = 1; i <= count; i++) { \
	      if (length(line " " words[i]) > 62) { printf "  %-15s%s\n", name, line; name = ""; line = "" } \
	      line = line " " words[i] } \
	    printf "  %-15s%s\n", name, line }' $(MAKEFILE_LIST)

env: .venv/.ready

# A Python that was asked for is the one that is used, also where an environment of another is there.
ifneq ($(origin PYTHON),file)
ifneq ($(shell cat .venv/.ready 2>/dev/null),$(PYTHON))
.venv/.ready: anew
anew:
endif
endif

.venv/.ready: pyproject.toml uv.lock hatch_build.py src/holdfast/process/starter.c src/holdfast/store/postgres/logs/grams.c
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Holdfast needs Python 3.11 or newer; set PYTHON=/path/to/python3")'
	@test -x $(UV) || { echo "making the environment: uv into .uv, the project into .venv (once)"; \
	  $(PYTHON) -m venv .uv && .uv/bin/pip install --quiet --disable-pip-version-check 'uv>=0.5,<1'; }
	@$(UVENV) $(UV) sync --quiet --frozen --all-extras --reinstall-package holdfast-gpu --python $(PYTHON)
	@echo '$(PYTHON)' >.venv/.ready

demo: env       ## the whole story on this machine, in under a minute
	@$(RUN)/python examples/demo.py

demo-fleet: env ## a pool of hosts: it grows for 30 jobs, loses a host to kill -9 and one that freezes, and shrinks
	@$(RUN)/python examples/demo_fleet.py

demo-pipeline: env ## a workflow: images decoded, three variants by a slow model, a contact sheet; one call hangs
	@$(RUN)/python examples/demo_pipeline.py

##@ Test: on any machine
# Twice the cores of a small machine: what takes long waits for programs it started, and each worker collects every test.
WORKERS ?= 4
# Byte code is kept, also where the environment forbids it beside the sources: without it each worker compiles pytest and
# its plugins anew, before tests/conftest.py can say where to keep it.
KEPT := env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX=$(CURDIR)/.pytest_cache/byte-code
test: env | .pytest_cache/byte-code ## all tests but the heavy ones and those that need torch
	@$(KEPT) $(RUN)/python -m pytest -q -n $(WORKERS) --dist worksteal --durations=30 --durations-min=8

test-bare: env | .pytest_cache/byte-code ## the same as on a machine with nothing but Python and make: other programs hidden (root), no terminal
	@tests/bare.sh $(MAKE) --no-print-directory test

# Tests that need ssh, podman, Slurm, pgbouncer, promtool or a C compiler, which a bare machine skips.
PROGRAMS := tests/system/containers tests/system/slurm tests/system/supervisor/test_ssh.py tests/system/sessions/test_ssh.py \
  tests/system/supervisor/policies/test_debug_gather.py tests/store/test_stock_server.py tests/providers tests/unit/process \
  tests/unit/controller/test_monitoring.py
programs: env | .pytest_cache/byte-code ## the tests that need ssh, podman, Slurm, pgbouncer, promtool or a C compiler, where these are there
	@$(KEPT) $(RUN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(PROGRAMS)

heavy: env | .pytest_cache/byte-code ## real containers, a real S3, killed fleets, nights of faults, each benchmark at a tiny size
	@$(KEPT) $(RUN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m heavy

# Made once, before several workers would make it at the same time. What fails here fails in the tests, which say it.
.pytest_cache/byte-code:
	-@$(KEPT) $(RUN)/python -m pytest -q --collect-only >/dev/null

##@ Test: with what it installs or needs beside Python
# Debian's Chromium, or another that CHROMIUM names.
browser: env    ## the dashboard in a real Chromium, which it installs where root and apt-get are there
	@command -v $(or $(CHROMIUM),chromium) >/dev/null || apt-get install -y -q chromium >/dev/null
	@$(UVENV) $(UV) sync --quiet --frozen --all-extras --group browser --python $(PYTHON)
	@HOLDFAST_TEST_CHROMIUM=$$(command -v $(or $(CHROMIUM),chromium)) $(RUN)/python -m pytest -q tests/unit/controller/web/chromium tests/system/sessions/test_browser_shell.py

pictures: env   ## the dashboard's pictures of the docs, taken anew
	@$(UVENV) $(UV) sync --quiet --frozen --all-extras --group browser --python $(PYTHON)
	@HOLDFAST_TEST_CHROMIUM=$$(command -v $(or $(CHROMIUM),chromium)) $(RUN)/python examples/pictures.py

# The builder has an environment of its own.
docs: env .venv-docs/.ready ## the documents as a site in build/site, without a warning; asks no other host for anything
	@$(RUN)/python -m docs.site.build build/site --builder .venv-docs/bin/zensical

docs-wheel: docs ## the site as a package, which `holdfast docs` opens offline, in dist/
	@$(RUN)/python -m docs.site.wheel build/site dist

.venv-docs/.ready:
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/pip install --quiet --disable-pip-version-check 'zensical==0.0.73'
	@touch .venv-docs/.ready

hang-picture: env ## the moving picture of a hang that is freed, from a real run, drawn anew
	@$(RUN)/python examples/hang_picture.py

kept: env       ## the parts of others that the dashboard's pages use, fetched anew by npm and compared with their digests
	@$(RUN)/python examples/fetch_kept.py

code-large: env ## A hundred thousand files and a sparse one of 2 GiB travel with a job; ten minutes
	@HOLDFAST_TESTS_LARGE_CODE=1 $(RUN)/python -m pytest -q tests/system/code -k hundred

ddp: env .venv-torch/.supervised ## PyTorch DDP under torchrun, under Holdfast, and through a bad night; brings its own torch
	@HOLDFAST_TEST_TORCH=$(CURDIR)/.venv-torch/bin/python $(RUN)/python -m pytest -q tests/system/gangs/test_ddp.py tests/system/gangs/test_slow_ranks.py::test_a_rank_that_computes_wrongly_has_its_host_set_aside tests/system/supervisor/night/test_ddp_gather.py tests/system/supervisor/night/test_ddp_faults.py

# A machine with two cores starves one of two healthy ranks at times, and the judge then names it, as it should.
slow-ranks: env .venv-torch/.supervised ## a rank of real DDP whose CPU quota is cut is named; for a machine with four idle cores
	@HOLDFAST_TEST_TORCH=$(CURDIR)/.venv-torch/bin/python $(RUN)/python -m pytest -q -s tests/system/gangs/test_slow_ranks.py

# A torch that is there already, built for CUDA: make gpu GPU_TORCH=/path/to/python
GPU_TORCH ?=
gpu: env $(if $(GPU_TORCH),,.venv-torch/.supervised) ## hangs, faults, models, NCCL and readings on this machine's real NVIDIA GPU; brings its own torch
	@HOLDFAST_TEST_TORCH=$(or $(GPU_TORCH),$(CURDIR)/.venv-torch/bin/python) $(RUN)/python -m pytest -q tests/gpu

stops: env .venv-torch/.supervised ## what each launcher's program saves at each kind of stop, with real torch workers; an hour
	@.venv-torch/bin/pip install --quiet --disable-pip-version-check accelerate
	@$(RUN)/python -m tests.system.stops.table --torch $(CURDIR)/.venv-torch/bin/python

# torch is no dependency of the project. Where pip's own index has only builds with CUDA (2 GB and more), pass the CPU one:
#   make ddp TORCH_INDEX='--index-url https://download.pytorch.org/whl/cpu --extra-index-url https://pypi.org/simple'
TORCH       ?= torch==2.13.0
TORCH_INDEX ?=
# +cpu: only a build without CUDA, which pip's own index has none of.
TORCH_BUILD ?=
.venv-torch/.ready:
	@echo "installing $(TORCH)$(TORCH_BUILD) and numpy into .venv-torch (once)"
	@$(PYTHON) -m venv .venv-torch
	@.venv-torch/bin/pip install --quiet --disable-pip-version-check $(TORCH_INDEX) '$(TORCH)$(TORCH_BUILD)' numpy || { rm -rf .venv-torch; \
	  echo "torch could not be had; a CPU build: make ddp TORCH_INDEX='--index-url https://download.pytorch.org/whl/cpu --extra-index-url https://pypi.org/simple'"; exit 1; }
	@touch .venv-torch/.ready

# What a process needs beside Holdfast's own code to talk to a policy script.
.venv-torch/.supervised: .venv-torch/.ready
	@.venv-torch/bin/pip install --quiet --disable-pip-version-check msgspec
	@touch .venv-torch/.supervised

integrations: env .venv-torch/.libraries ## beats and checkpoints in diffusers, transformers, Lightning, accelerate and Ray; brings them itself
	@HOLDFAST_TEST_INTEGRATIONS=$(CURDIR)/.venv-torch/bin/python $(RUN)/python -m pytest -q tests/system/integrations

.venv-torch/.libraries: .venv-torch/.ready
	@echo "installing the libraries into .venv-torch (once)"
	@.venv-torch/bin/pip install --quiet --disable-pip-version-check $(TORCH_INDEX) diffusers transformers lightning accelerate ray
	@touch .venv-torch/.libraries

slurm: env      ## the supervisor and the provider under a real Slurm, which it installs (root, apt-get) and starts for itself on loopback
	@tests/system/slurm/install.sh
	@HOLDFAST_TESTS_NEED_SLURM=1 $(RUN)/python -m pytest -q tests/system/slurm tests/providers/slurm tests/providers/conformance -k "slurm"

kubernetes: env ## the Kubernetes provider under a real one of this machine (root); HOLDFAST_KUBERNETES_BIN names its programs
	@tests/system/kubernetes/install.sh
	@test -n "$$HOLDFAST_KUBERNETES_BIN" || { echo "set HOLDFAST_KUBERNETES_BIN; tests/system/kubernetes/build.sh FOLDER makes what it must name"; exit 1; }
	@$(RUN)/python -m pytest -q tests/providers/kubernetes tests/providers/conformance -k "kubernetes"

s3: env         ## checkpoints in a real S3, Ceph's gateway, which it installs (root, apt-get) and starts for itself on loopback
	@tests/system/checkpoints/install.sh
	@HOLDFAST_TESTS_NEED_S3=1 $(RUN)/python -m pytest -q -m "not soak" tests/system/checkpoints/test_blobs.py tests/system/checkpoints/test_ceph.py

tools:          ## podman, docker and a registry for the container tests, Slurm, Ceph's S3, sshd, a packaged PostgreSQL and pgbouncer, where root and apt-get are there
	@tests/system/containers/install.sh
	@tests/system/slurm/install.sh
	@tests/system/checkpoints/install.sh
	@tests/system/supervisor/install.sh
	@tests/store/install.sh
	@if [ -n "$$HOLDFAST_KUBERNETES_BIN" ]; then tests/system/kubernetes/install.sh; fi

##@ Before a commit
lint: env       ## ruff
	@$(RUN)/ruff check . && $(RUN)/ruff format --check .

types: env      ## mypy, strict
	@$(RUN)/mypy

imports: env    ## the layers of ARCHITECTURE.md
	@$(RUN)/lint-imports

##@ Release
release: env release-tools ## an sdist and three wheels in dist/: built twice and compared, checked, installed and run; all but the upload
	@$(RUN)/python -m release.build dist
	@HOLDFAST_TEST_RELEASE=$(CURDIR)/dist $(RUN)/python -m pytest -q tests/release

release-tools:  ## the compiler and the emulator for ARM 64, where root and apt-get are there; a release needs the compiler
	@command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null || \
	  apt-get install -y -q --no-install-recommends gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user >/dev/null

client:         ## the client alone, installed as on a Mac: every command loads, and says what it lacks
	@$(PYTHON) -m venv .venv-client
	@.venv-client/bin/pip install --quiet --disable-pip-version-check . 'pytest>=8.3'
	@.venv-client/bin/python -m pytest -q --noconftest -p no:cacheprovider tests/unit/cli/test_mac.py

##@ Measure
bench: env      ## figures, each beside a limit measured in the same run; warns of what is worse than the run in the docs
	@$(RUN)/python -m bench

bench-keep: env ## the same, and its rows become those of the docs, with which the next runs are compared
	@$(RUN)/python -m bench --keep

bench-peers: env ## calls a second and latency beside PgQueuer, Procrastinate, Celery, Dramatiq and HyperQueue, which it installs; writes the docs' table
	@bench/peers/install.sh
	@$(RUN)/python -m bench.peers --write docs/reference/measuring.md

curves: env     ## what Holdfast costs as its load grows, as the pictures of the docs; a quarter of an hour
	@bench/peers/install.sh
	@mkdir -p bench/results
	@$(RUN)/python -m bench.curves >bench/results/curves.json
	@.venv-peers/bin/python bench/draw_curves.py docs/reference/curves <bench/results/curves.json

costs: env     ## docs/reference/costs.md: statements, commits, requests, forks and files of each act, counted anew
	@$(RUN)/python -m bench.counts --write

# Every Python process of the benchmark is in the picture, each under its own name; PostgreSQL is not.
CASE ?= noop
profile: env    ## where a benchmark's time goes, as a flame picture: make profile CASE=true
	@mkdir -p bench/results
	@$(RUN)/py-spy record --subprocesses --nonblocking --rate 100 --output bench/results/profile-$(CASE).svg -- $(RUN)/python -m bench $(CASE)
	@echo "bench/results/profile-$(CASE).svg: open it in a browser"

soak: env       ## long runs with faults
	@$(RUN)/python -m pytest -q -m soak

##@ Clean up
clean:          ## take the environments and caches away
	rm -rf .venv .uv .venv-torch .venv-peers .venv-client .venv-docs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis demo-run bench/results build dist
