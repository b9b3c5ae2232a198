# The batch engine: notebooks x models x seeds, resumable, only what is out of date.
#   snakemake --cores all                    the laptop profile on the embedded model
#   snakemake --cores 4 --config profile=paper model=gpt2,pythia-160m seed=42,43 at_once=2
#   snakemake --cores all --config profile=smoke number=01-03         or paper=whipp
#   snakemake --executor slurm --jobs 20 --config profile=paper model=gpt2,gpt2-medium gpus=1
# The same file runs on SLURM or Kubernetes through Snakemake's executor plugins (pip install
# '.[cluster]' brings SLURM's; the cache, $NONLINEARITY_CACHE, is to be a folder all nodes share).
# `make report` is lib/reports/series.py, which runs this file and follows it; `make cluster` tries
# it on a SLURM of this machine's own.
import os
import subprocess
import sys

sys.path.insert(0, workflow.basedir)
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
        live.take_back(PLAN)
except InputError as error:
    sys.exit(str(error))

HOME = str(PLAN.home)
PYTHON = sys.executable
# The tour collates what the others found.
LAST = [n for n in PLAN.notebooks if n.startswith("00")]
OTHERS = [n for n in PLAN.notebooks if n not in LAST]
ORDER = {name: len(PLAN.notebooks) - k for k, name in enumerate(PLAN.notebooks)}
# Jobs that start together count together: the first, which takes all cores, outweighs any two.
ORDER[PLAN.notebooks[0]] = sum(ORDER.values())
# What a report may take of a cluster's node: cores, memory in MB, minutes. --set-threads and
# --set-resources change them rule by rule.
NODE = {
    "smoke": (1, 4_000, 30),
    "laptop": (2, 8_000, 60),
    "study": (4, 16_000, 480),
    "paper": (8, 32_000, 1_440),
}
CORES, MEMORY, MINUTES = NODE[PLAN.profile.name]


def threads(name):
    """On this machine a report has all cores, unless several are to run at once; the first one
    has them even then, so that there is soon something to read. (At smoke it is quick without, and
    its digits, which follow the number of threads, are then those of a node of a cluster.)"""

    def of_report(wildcards):
        if workflow.remote_exec or workflow.non_local_exec:
            return CORES
        first = name == PLAN.notebooks[0] and len(PLAN.runs) == 1 and CORES > 1
        return workflow.cores if first else max(1, workflow.cores // PLAN.at_once)

    return of_report


def without_accounting():
    """Ask squeue how SLURM's jobs are where the plugin would ask sacct and nobody keeps accounts
    (it looks only whether the command is there)."""
    settings = workflow.executor_settings
    if getattr(settings, "status_command", None) == "sacct":
        if subprocess.run(["sacct", "--noheader"], capture_output=True).returncode:
            settings.status_command = "squeue"


def reports(names):
    return expand(HOME + "/{run}/{notebook}.ipynb", run=PLAN.runs, notebook=names)


onstart:
    without_accounting()
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
        threads: threads(name)
        resources:
            mem_mb=MEMORY,
            runtime=MINUTES,
            gpu=PLAN.gpus,
        shell:
            "{PYTHON:q} -m lib.reports.one --profile={params.profile:q} --model={params.model:q}"
            " --corpus={params.corpus:q} --seed={params.seed} --run={wildcards.run:q}"
            " {input.notebook:q} {output:q}"
