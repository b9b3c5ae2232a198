# The batch engine: notebooks x models x seeds, only what is out of date. `make report` runs this.
#   snakemake --cores 2                                  the laptop profile on the embedded model
#   snakemake --cores 4 --config profile=paper model=gpt2,pythia-160m seed=42,43
#   snakemake --executor slurm --jobs 20 --config profile=paper model=gpt2,gpt2-medium
# The last needs Snakemake's SLURM plugin, and $NONLINEARITY_CACHE on a folder that all nodes share.
import json
import sys
from pathlib import Path

sys.path.insert(0, workflow.basedir)
from lib.errors import InputError
from lib.cli import inputs_of, plan

workdir: workflow.basedir

try:
    RUNS = plan(config)
except InputError as error:
    sys.exit(str(error))
PYTHON, LIB = sys.executable, [str(p) for p in sorted(Path("lib").rglob("*.py"))]


rule all:
    input:
        expand("runs/{path}.ipynb", path=RUNS),


# Where there are fewer reports than cores, each gets several.
THREADS = max(1, (workflow.cores or 1) // max(1, len(RUNS)))


# A rule a report, for Snakemake reads no priority from a wildcard: 01 first, the tour last.
for k, (path, given) in enumerate(RUNS.items()):

    rule:
        name:
            f"report_{k}"
        input:
            f"notebooks/{path.split('/')[1]}.ipynb",
            LIB,
            inputs_of(given),
        output:
            f"runs/{path}.ipynb",
        params:
            path=path,
            given=json.dumps(given),
        priority: len(RUNS) - k
        threads: THREADS
        resources:
            mem_mb=8_000,
            runtime=480,
        shell:
            "exec env OMP_NUM_THREADS={threads} {PYTHON:q} -m lib.cli one {params.path:q} {params.given:q}"
