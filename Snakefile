# The batch engine: notebooks x models x seeds, resumable, only what is out of date.
#   snakemake --cores all                    the laptop profile on the embedded model
#   snakemake --cores 4 --config profile=paper model=gpt2,pythia-160m seed=42,43 at_once=2
#   snakemake --cores all --config profile=smoke number=01-03         or paper=whipp
#   snakemake --executor slurm --jobs 20 --config profile=paper model=gpt2,gpt2-medium
# The same file runs on SLURM or Kubernetes through Snakemake's executor plugins. `make report` is
# lib/reports/series.py, which runs this file and follows it.
import os
import sys

sys.path.insert(0, workflow.basedir)
from snakemake.exceptions import WorkflowError

from lib.base import InputError
from lib.reports import live
from lib.reports.digest import note_sources
from lib.reports.plan import check_names, plan

workdir: workflow.basedir

DRIVEN = "NONLINEARITY_SERIES" in os.environ  # by lib/reports/series.py
try:
    PLAN = plan(config)
    if workflow.is_main_process:
        if not DRIVEN:
            check_names(PLAN)
        note_sources(PLAN.home / ".code", PLAN.notebooks)
except InputError as error:
    sys.exit(str(error))

HOME = str(PLAN.home)
PYTHON = sys.executable
# The tour collates what the others found.
LAST = [n for n in PLAN.notebooks if n.startswith("00")]
OTHERS = [n for n in PLAN.notebooks if n not in LAST]
ORDER = {name: len(PLAN.notebooks) - k for k, name in enumerate(PLAN.notebooks)}
try:
    # A report has all cores unless several are to run at once.
    THREADS = workflow.cores if workflow.remote_exec else max(1, workflow.cores // PLAN.at_once)
except WorkflowError:
    THREADS = 4  # of a cluster's node: --set-threads changes it
# libgomp's idle threads spin, which is quick on a machine of one's own and many times slower on a
# shared one: they sleep where reports run beside each other, and soon where one runs alone.
if PLAN.at_once > 1:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
else:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def reports(names):
    return expand(HOME + "/{run}/{notebook}.ipynb", run=PLAN.runs, notebook=names)


onstart:
    if not DRIVEN:
        live.begin(PLAN)


onsuccess:
    if not DRIVEN:
        live.end(PLAN)


onerror:
    if not DRIVEN:
        live.end(PLAN)


wildcard_constraints:
    notebook=r"\d\d_[^/]+",


rule all:
    input:
        reports(PLAN.notebooks),


# Priority is by notebook, so one rule for each; Snakemake cannot read it from a wildcard.
for name in PLAN.notebooks:

    rule:
        name:
            f"report_{name}"
        input:
            notebook=ancient(f"notebooks/{name}.ipynb"),
            sources=f"{HOME}/.code/{name}.json",
            others=reports(OTHERS) if name in LAST else [],
        output:
            f"{HOME}/{{run}}/{name}.ipynb",
        params:
            profile=PLAN.profile.name,
            model=lambda w: PLAN.runs[w.run][0],
            seed=lambda w: PLAN.runs[w.run][1],
            corpus=PLAN.corpus,
        priority: ORDER[name]
        # Snakemake hands threads on as OMP_NUM_THREADS.
        threads: THREADS
        resources:
            mem_mb=16_000,
            runtime=240,
        shell:
            "{PYTHON:q} -m lib.reports.one --profile={params.profile:q} --model={params.model:q}"
            " --corpus={params.corpus:q} --seed={params.seed} --run={wildcards.run:q}"
            " {input.notebook:q} {output:q}"
