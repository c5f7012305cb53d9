# `make quickstart` and `make test` set everything up by themselves, in .venv.
PYTHON ?= python3
# Where only CPUs are, a CPU wheel of torch (say, from PyTorch's own index, through PIP_EXTRA_INDEX_URL) saves gigabytes.
TORCH ?= torch==2.13.0
BIN := .venv/bin

.PHONY: quickstart test lint docs clean

quickstart: .venv/quickstart
	@$(BIN)/python examples/quickstart.py

test: .venv/dev
	$(BIN)/python -m pytest

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src

docs: .venv/dev
	$(BIN)/python docs/generate.py

.venv/quickstart: pyproject.toml
	@echo "Quickstart: about 3 minutes the first time (it downloads about 400 MB of CPU wheels into .venv,"
	@echo "or 3 GB where pip takes torch with CUDA), then 30 seconds."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet "$(TORCH)" -e ".[torch,tabular,mlflow]"
	@touch $@

.venv/dev: pyproject.toml tests/toy_package/pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "$(TORCH)" -e ".[dev]" -e tests/toy_package
	@touch $@

clean:
	rm -rf .venv .quickstart
