# `make quickstart` and `make test` set everything up by themselves, in .venv.
PYTHON ?= python3
# Where only CPUs are, a CPU wheel of torch (say, from PyTorch's own index, through PIP_EXTRA_INDEX_URL) saves gigabytes.
TORCH ?= torch==2.13.0
BIN := .venv/bin
# `make soak SHARE=2/4` runs the second quarter of what repeats.
SHARE ?= 1/1

.PHONY: quickstart test test-services packages gpu soak lint docs azurite clean

quickstart: .venv/quickstart
	@$(BIN)/python examples/quickstart.py

test: .venv/dev
	@# Three, also where there are two processors: some tests wait for processes of theirs.
	$(BIN)/python -m pytest -n 3 --dist worksteal

# What needs real servers or minutes: Ray, PostgreSQL, Azurite, runs of several processes and nodes.
test-services: .venv/dev packages .azurite/tried
	$(BIN)/python -m pytest -n 3 --dist worksteal --services

# Debian's packages of the servers that tests start; where they cannot be installed, these tests are skipped.
packages:
	@missing=$$(ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || echo postgresql; command -v npm >/dev/null || echo npm; \
	command -v java >/dev/null || echo default-jre-headless; \
	command -v chromium >/dev/null || echo chromium; \
	PATH=$$PATH:/usr/sbin command -v nginx >/dev/null || echo nginx-light; \
	command -v promtool >/dev/null || echo prometheus); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	   apt-get install -qq -y --no-install-recommends $$missing >/dev/null; then exit 0; fi; \
	echo "Some tests are skipped: apt-get install" $$missing "brings what they need."

# What trains on a GPU; all other tests do not see it. Where there is none, they are skipped.
gpu: .venv/dev
	$(BIN)/python -m pytest -n 4 --gpu -m gpu

soak: .venv/dev
	@# Three, as above.
	$(BIN)/python -m pytest -n 3 --dist worksteal --soak --share $(SHARE)
	$(BIN)/python tests/mutation/run.py --share $(SHARE)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src examples docs benchmarks

docs: .venv/dev
	$(BIN)/python docs/generate.py

.venv/quickstart: pyproject.toml | .venv/bin/python
	@echo "Quickstart: the first time about 4 minutes, of which the training takes half a minute. It downloads about 380 MB"
	@echo "of wheels into .venv (about 3 GB where pip takes the torch that is built for CUDA). Later, it downloads nothing."
	@$(BIN)/python -m pip install --quiet "$(TORCH)" -e ".[torch,tabular,mlflow]"
	@touch $@

.venv/dev: pyproject.toml tests/toy_package/pyproject.toml | .venv/bin/python
	@# Of the 25,000 files that pip would compile, the tests import a quarter: Python compiles those as it meets them.
	$(BIN)/python -m pip install --quiet --no-compile "$(TORCH)" -e ".[dev]" -e tests/toy_package
	@touch $@

# Microsoft's emulator of Azure's storage, for the tests of `az://`: they are skipped where npm cannot install it.
azurite:
	npm install --prefix .azurite --no-audit --no-fund --loglevel error azurite@3

.azurite/tried:
	@mkdir -p .azurite
	@$(MAKE) --no-print-directory azurite || echo "The tests of az:// are skipped: Azurite cannot be installed."
	@touch $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Python 3.11 to 3.13 is needed: make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv .venv

# What the quickstart trained stays in `runs`, with MLflow's store beside it: it may be wanted.
clean:
	rm -rf .venv .quickstart .azurite
