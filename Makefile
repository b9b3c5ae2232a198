# make report and make test work from a fresh clone: each makes .venv itself.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROFILE ?= laptop
MODEL ?=
CORPUS ?=
SEED ?= 42
JOBS ?= 1
SMOKE := runs/smoke
OPTIONS := $(if $(MODEL),"model=$(MODEL)") $(if $(CORPUS),"corpus=$(CORPUS)") seed=$(SEED)
PARAMETERS := -p profile $(PROFILE) -p seed $(SEED) $(if $(MODEL),-p model "$(MODEL)") $(if $(CORPUS),-p corpus "$(CORPUS)")

.PHONY: report test lint lab render notebook site bench setup clean

report: $(READY)  ## the whole series with the laptop profile, into runs/, with an index page
	$(BIN)/snakemake --cores all --quiet rules host progress --rerun-triggers mtime params --config profile=$(PROFILE) at_once=$(JOBS) $(OPTIONS)
	@echo "read runs/$(PROFILE)/index.html"

test: $(READY) lint  ## lint, unit tests, then every notebook with the smoke profile
	$(BIN)/python -m pytest -n 2 tests
	rm -rf $(SMOKE) && mkdir -p $(SMOKE)
	for nb in notebooks/*.ipynb; do $(BIN)/papermill --prepare-only -p profile smoke $$nb $(SMOKE)/$$(basename $$nb) || exit 1; done
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=600 $(SMOKE)

lint: $(READY)
	$(BIN)/ruff check .

lab: $(READY)  ## JupyterLab
	$(BIN)/jupyter lab notebooks

notebook: $(READY)  ## make notebook N=01 MODEL=gpt2 CORPUS=wikitext-2 PROFILE=laptop
	$(BIN)/python -m lib.reports.render run "$(N)" $(PARAMETERS)

render: $(READY)  ## refresh the committed notebooks, and say which changed: make render, or make render N=01
	$(BIN)/python -m lib.reports.render commit "$(N)"

site: $(READY)  ## the committed notebooks as a static site, into site/
	$(BIN)/python -m lib.reports.site

bench: $(READY)  ## what the measured pass and the sweep cost, as ratios to plain forward passes
	$(BIN)/python tests/bench.py

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) runs site notebooks/pages data/results/smoke data/results/laptop
