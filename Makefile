# Each target makes .venv itself. Settings: PROFILE=laptop MODEL=gpt2 CORPUS=wikitext-2 SEED=42,43
# PAPER=whipp N=01,03-05 JOBS=2; they reach Python through the environment. `make train` takes N.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS := $(VENV)/.docs
KNOWN := PROFILE MODEL CORPUS SEED PAPER N JOBS PYTHON VENV
GIVEN := $(foreach v,$(.VARIABLES),$(if $(filter command,$(origin $v)),$v))
$(foreach v,$(filter-out $(KNOWN) MAKEFLAGS MAKEOVERRIDES -*-%,$(GIVEN)),\
  $(error unknown setting $v: known are $(KNOWN)))
export PROFILE MODEL CORPUS SEED PAPER N JOBS
# Exact pins, and an editable install that editors and type checkers can follow.
INSTALL = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check \
  --constraint constraints.txt --config-settings editable_mode=compat --editable
# Names and texts are UTF-8, whatever the locale.
export PYTHONUTF8 = 1
# Set-up compiles nothing, so what the first import compiles must be kept.
unexport PYTHONDONTWRITEBYTECODE

# make writes nothing itself, so that a pipe that is closed (| head) cannot end it.
.SILENT:
.PHONY: report model test test-all lint lab notebook train render read check-measured site bench setup clean

report: $(READY)  ## the series at the laptop profile, into runs/laptop/index.html
	$(BIN)/python -m lib.cli report

model: $(READY)  ## every instrument on a model of yours: make model MODEL=gpt2 CORPUS=text.txt
	test -n "$(MODEL)" || { echo "no model was named: give for example make model MODEL=gpt2"; exit 2; }
	N=31 $(BIN)/python -m lib.cli notebook

notebook: $(READY)  ## one report: make notebook N=01 MODEL=gpt2 CORPUS=wikitext-2
	$(BIN)/python -m lib.cli notebook

test: $(READY) lint  ## lint, tests, and every notebook at the smoke profile
	OMP_NUM_THREADS=1 TQDM_DISABLE=1 $(BIN)/python -m pytest -n 2 --nbmake tests notebooks

test-all: $(READY) lint  ## those marked slow too: pages from what is kept, with measuring forbidden
	OMP_NUM_THREADS=1 TQDM_DISABLE=1 $(BIN)/python -m pytest -n 2 -m "" --nbmake tests notebooks

lint: $(READY)
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check lib tests
	$(BIN)/mypy

lab: $(READY)  ## JupyterLab
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb

train: $(READY)  ## the trainings of a report, kept in data/measured: make train N=17
	$(BIN)/python -m lib.cli train

render: $(READY)  ## execute the committed notebooks in place: make render, or make render N=01
	$(BIN)/python -m lib.cli render

read: $(READY)  ## pin a page's words to the numbers of its summary, once they were read: N=06
	$(BIN)/python -m lib.cli read

check-measured: $(READY)  ## measure a few kept entries of each page again and compare: N=06
	$(BIN)/python -m lib.cli check-measured

site: $(DOCS)  ## the committed notebooks as a static site, into site/, and checked
	$(BIN)/python -m sphinx -q -b html notebooks site
	test ! -f notebooks/check_site.py || $(BIN)/python notebooks/check_site.py site

bench: $(READY)  ## what a measured pass, the sweep and training cost, as ratios within one run
	TQDM_DISABLE=1 $(BIN)/python tests/bench.py

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	echo "setting up $(VENV), about a minute" >&2
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[test]'
	touch $@

$(DOCS): $(READY)
	echo "adding what makes the site" >&2
	$(INSTALL) '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) runs site jupyter_execute
