# make report and make test work from a fresh clone: each makes .venv itself.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SMOKE := runs/smoke
# Names that are set on the command line, for Python to refuse unknown ones.
NONLINEARITY_OPTIONS := $(strip $(foreach v,$(.VARIABLES),$(if $(filter command,$(origin $v)),$v)))
# What the reader sets reaches Python through the environment, as it stands: neither make nor a
# shell reads it.
override PROFILE := $(value PROFILE)
override MODEL := $(value MODEL)
override CORPUS := $(value CORPUS)
override SEED := $(value SEED)
override PAPER := $(value PAPER)
override N := $(value N)
override JOBS := $(value JOBS)
export NONLINEARITY_OPTIONS PROFILE MODEL CORPUS SEED PAPER N JOBS
# Set-up compiles nothing (see below), so that what the first import compiles must be kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: report test faults cluster lint lab render notebook site bench setup clean

# PROFILE=laptop MODEL=gpt2 CORPUS=wikitext-2 SEED=42,43 PAPER=whipp N=01,03-05 JOBS=2
report: $(READY)  ## the whole series with the laptop profile, into runs/laptop/index.html
	$(BIN)/python -m lib.reports.series

test: $(READY) lint  ## lint, unit tests, then every notebook with the smoke profile
	$(BIN)/python -m pytest -n 2 tests
	rm -rf $(SMOKE) && mkdir -p $(SMOKE)
	for nb in notebooks/*.ipynb; do $(BIN)/papermill --prepare-only -p profile smoke $$nb $(SMOKE)/$$(basename $$nb) || exit 1; done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --nbmake --nbmake-timeout=600 $(SMOKE)

faults: $(READY)  ## kills, hostile names, bad input and damage, as a table; about a quarter of an hour
	$(BIN)/python tests/faults.py "$$N"

cluster: $(READY)  ## the smoke series, or its part N, through a SLURM that is started on this machine
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[cluster]'
	$(BIN)/python tests/cluster.py "$$N"

lint: $(READY)
	$(BIN)/ruff check .

lab: $(READY)  ## JupyterLab
	$(BIN)/jupyter lab notebooks

notebook: $(READY)  ## make notebook N=01 MODEL=gpt2 CORPUS=wikitext-2 PROFILE=laptop
	$(BIN)/python -m lib.reports.series notebook

render: $(READY)  ## refresh the committed notebooks, and say which changed: make render, or make render N=01
	$(BIN)/python -m lib.reports.render commit "$$N"

site: $(READY)  ## the committed notebooks as a static site, into site/
	$(BIN)/python -m lib.reports.site

bench: $(READY)  ## what the measured pass and the sweep cost, as ratios to plain forward passes
	$(BIN)/python tests/bench.py

setup: $(READY)

# A set-up that was killed is gone through again: pip is the last thing that venv brings. Python
# compiles what is imported when it is: compiling all that is installed is two fifths of the wait.
$(READY): pyproject.toml constraints.txt
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) runs site notebooks/pages data/results/smoke data/results/laptop
