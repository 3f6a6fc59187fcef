# make lab        set up and open the course          make test    every test
# make exercises  regenerate exercises/               make notebooks  execute every notebook again
# make lint       ruff on code and notebooks          make bench   the benchmarks

PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2
NBVAL := $(BIN)/python -m pytest --nbval --nbval-current-env --nbval-cell-timeout=120 \
	--nbval-sanitize-with tests/nbval_sanitize.cfg -p no:cacheprovider -n $(WORKERS) --dist loadfile

.PHONY: lab test exercises notebooks lint bench clean

.venv/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.12 …"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[dev]'
	@touch $@

lab: .venv/.installed
	$(BIN)/jupyter lab notebooks/00_start_here.ipynb $(ARGS)

test: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile tests
	$(NBVAL) notebooks solutions

exercises: .venv/.installed
	$(BIN)/python -m course_lib.grading.build

notebooks: .venv/.installed
	$(BIN)/python -m course_lib.grading.execute notebooks solutions
	$(MAKE) exercises

lint: .venv/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.installed
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv build dist runs .pytest_cache .ruff_cache .hypothesis
