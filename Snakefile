# The batch engine: notebooks x models x seeds, resumable, only what is out of date.
#   snakemake --cores all                                        the laptop profile on the embedded model
#   snakemake --cores 4 --config profile=paper model=gpt2,pythia-160m seed=42,43 at_once=2
#   snakemake --executor slurm --jobs 20 --config profile=paper model=gpt2,gpt2-medium
# The same file runs on SLURM or Kubernetes through Snakemake's executor plugins.
import sys
from pathlib import Path

sys.path.insert(0, workflow.basedir)
from lib.base.paths import ROOT
from lib.base.profiles import get_profile
from lib.base import label

PROFILE = get_profile(str(config.get("profile", "laptop")))
MODELS = str(config.get("model", PROFILE.subject)).split(",")
SEEDS = [int(s) for s in str(config.get("seed", 42)).split(",")]
CORPUS = str(config.get("corpus", PROFILE.corpus))
RUNS = {label(PROFILE, m, CORPUS, s): (m, s) for m in MODELS for s in SEEDS}
ALL = sorted(p.stem for p in (ROOT / "notebooks").glob("*.ipynb"))
# The tour collates what the others found, so it comes last.
LAST = [n for n in ALL if n.startswith("00")]
REPORTS = [n for n in ALL if n not in LAST]
PYTHON = sys.executable
HOME = f"runs/{PROFILE.name}"


def reports(names):
    return expand(HOME + "/{run}/{notebook}.ipynb", run=RUNS, notebook=names)


wildcard_constraints:
    notebook=r"\d\d_[^/]+",


rule all:
    input:
        f"{HOME}/index.html",


rule notebook:
    input:
        notebook="notebooks/{notebook}.ipynb",
        code=sorted(str(p.relative_to(ROOT)) for p in (ROOT / "lib").rglob("*.py")),
        first=lambda w: reports(REPORTS) if w.notebook in LAST else [],
    output:
        HOME + "/{run}/{notebook}.ipynb",
    params:
        model=lambda w: RUNS[w.run][0],
        seed=lambda w: RUNS[w.run][1],
        corpus=CORPUS,
        profile=PROFILE.name,
    # Snakemake hands this on as OMP_NUM_THREADS: a report has all cores unless several are to run at once.
    threads: max(1, (workflow.cores or 2) // int(config.get("at_once", 1)))
    shell:
        # Papermill writes as it goes; a report takes its name only when it is whole.
        "{PYTHON} -m papermill --no-progress-bar --log-level WARNING -p profile {params.profile} -p model {params.model:q} -p corpus {params.corpus:q}"
        " -p seed {params.seed} {input.notebook:q} {output:q}.part.ipynb && mv {output:q}.part.ipynb {output:q}"


rule index:
    input:
        reports(ALL),
    output:
        f"{HOME}/index.html",
    shell:
        "{PYTHON} -m lib.reports.render index {output:q} {input:q}"
