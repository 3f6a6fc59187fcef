# make lab        set up and open the course          make test       every test and notebook
# make test-quick a minute of them, for who edits     make lint       ruff and pyright
# make exercises  regenerate exercises/               make notebooks  execute every notebook again
# make setup      only the environment in .venv       make bench      the benchmarks
# make site       the course as web pages             make site-test  every page of them, in a browser
# make clean      remove the environment

PYTHON ?= python3
# One more than the two cores of a small machine: a test often waits, for ranks or for a browser. What runs on one
# worker together, and what begins first, tests/conftest.py says.
WORKERS ?= 3
# PyTorch's build, as uv's --torch-backend names it: cpu, auto, cu130 … Without it, PyPI's: on Linux that has CUDA.
TORCH_BUILD ?=
BIN := .venv/bin
# At a terminal pip shows its own bars. Where CI is set, neither they nor the steps below are printed.
QUIET := $(shell test -t 2 && test -z "$$CI" || echo -q)
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(QUIET)
# What is done now, and how many seconds make has run.
BEGAN := $(shell date +%s)
say = $(if $(CI),:,printf '[%3d s] %s\n' $$(($$(date +%s) - $(BEGAN))) "$(1)")
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=180 --nbval-sanitize-with tests/nbval_sanitize.cfg

# Tests start hundreds of short processes that import the course: let Python keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE
# Several processes share the cores: a thread of torch that waits for its turn sleeps, and does not spin.
export OMP_WAIT_POLICY = PASSIVE
# Tests run side by side: each computes in one thread.
test: export OMP_NUM_THREADS = 1

.PHONY: lab test test-quick setup exercises notebooks lint bench site site-test clean

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, not $$($(PYTHON) --version): make PYTHON=python3.12 …"; exit 2; }
	@test -x $(BIN)/python || { $(call say,Making an environment in .venv); $(PYTHON) -m venv .venv; }
	@$(call say,Installing PyTorch and what else the course needs: a few minutes the first time)
ifeq ($(TORCH_BUILD),)
	@$(PIP) -c constraints.txt -e '.[dev]'
else
	@$(PIP) uv
	@$(BIN)/uv pip install $(QUIET) --python $(BIN)/python --torch-backend $(TORCH_BUILD) -c constraints.txt -e '.[dev]'
endif
	@$(call say,Installed)
	@touch $@

lab: setup
	@$(call say,Starting JupyterLab; Ctrl-C ends it)
	@$(BIN)/course lab $(ARGS)

test: setup
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(NBVAL) tests notebooks

# About a minute, for whoever edits: the techniques by hand, the simulator, the grader's engine.
test-quick: export OMP_NUM_THREADS = 1
test-quick: setup
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m 'not slow' tests/test_architecture.py \
		tests/course_lib/by_hand/test_equal.py tests/course_lib/by_hand/test_rules.py tests/simulator/pipeline \
		tests/simulator/predict tests/simulator/inputs tests/course_lib/grading/test_judge.py

exercises: setup
	$(BIN)/python -m course_lib.notebooks.build

notebooks: setup
	$(BIN)/python -m course_lib.notebooks.opening
	$(BIN)/python -m course_lib.notebooks.execute notebooks solutions
	$(BIN)/python -m course_lib.chapters.footer
	$(BIN)/python -m course_lib.notebooks.build

lint: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

bench: setup
	for name in $(filter-out benchmarks/paired.py benchmarks/slow_network.py, $(wildcard benchmarks/*.py)); do \
		echo "== $$name"; $(BIN)/python $$name || exit 1; done

site: .venv/.installed-site
	$(BIN)/python site/build.py

.venv/.installed-site: .venv/.installed
	@$(call say,Installing what builds the site)
	@$(PIP) -c constraints.txt -e '.[site]'
	@touch $@

site-test: setup
	BUILT_SITE=build/site $(BIN)/python -m pytest tests/site

clean:
	rm -rf .venv build dist runs .pytest_cache .ruff_cache .hypothesis
