# Every target works from a fresh clone: all of them need .venv/.installed, which is made again when pyproject.toml or
# constraints.txt change. An environment that is already there is kept and brought up to date, never recreated.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
STAMP := $(VENV)/.installed
EXTRAS := train,sklearn,speech,fst,graph,triton,bench,docs,dev
CONSTRAINTS ?= constraints.txt
# Another torch than the constraints', as in TORCH='torch==2.6.*' CONSTRAINTS=/dev/null.
TORCH ?=
# Processes that run tests: one a core, at most four, because each of them also has torch's threads.
TEST_PROCESSES ?= auto
PYTEST_FLAGS ?=
# The tests of a file stay in one process, file after file: what its fixtures make is made once, and two processes do not
# compile the same kernels at the same time. The examples in docstrings, many small files, come last.
BY_FILE := --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help venv demo test slow gpu-check lint bench docs wheel clean

help: ## Say what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## Make .venv with everything that tests, benchmarks and documentation use.

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The constraints pin torch too: without them pip may fetch another build of several gigabytes.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -c $(CONSTRAINTS) -e '.[$(EXTRAS)]' $(TORCH)
	@touch $@

demo: $(STAMP) ## Learn to pronounce words under five objectives, and to find names on F1; results in out/demo.
	$(BIN)/structloss demo

test: $(STAMP) ## Run the tests and the examples in docstrings.
	$(BIN)/python -m pytest -m 'not slow' -n $(TEST_PROCESSES) --maxprocesses 4 $(BY_FILE) $(PYTEST_FLAGS)

slow: $(STAMP) ## Run the slow tests: examples, reproductions, every combination of the structures' suite.
	$(BIN)/python -m pytest -m slow -n $(TEST_PROCESSES) --maxprocesses 4 $(PYTEST_FLAGS)

gpu-check: $(STAMP) ## Check the kernels for GPUs without one: interpreted, and compiled.
	$(BIN)/python -m structloss.gpu

lint: $(STAMP) ## Check style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict -p structloss

bench: $(STAMP) ## Run every benchmark; results in benchmarks/results.
	@set -e; for script in benchmarks/*.py; do echo "$$script"; $(BIN)/python "$$script"; done

# Not --quiet: mkdocs then does not count its warnings, and a broken link would pass.
docs: $(STAMP) ## Build the documentation into docs/_build/html; a warning is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "docs/_build/html/index.html"

wheel: $(STAMP) ## Build dist/*.tar.gz and dist/*.whl, install the wheel alone into a new environment, and use it.
	rm -rf dist build
	$(BIN)/python -m build --outdir dist
	$(BIN)/python tests/wheel.py dist

clean: ## Remove what was built or cached, the compiled kernels too; .venv and results stay.
	rm -rf docs/_build build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
