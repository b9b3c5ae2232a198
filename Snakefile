# The batch engine: notebooks x models x seeds, only what is out of date. `make report` runs this.
#   snakemake --cores 2                                  the laptop profile on the embedded model
#   snakemake --cores 4 --config profile=paper model=gpt2,pythia-160m seed=42,43
#   snakemake --executor slurm --jobs 20 --config profile=paper model=gpt2,gpt2-medium
# The last needs Snakemake's SLURM plugin, and $NONLINEARITY_CACHE on a folder that all nodes share.
import json
import os
import sys

HERE = os.getcwd()  # where names of files in the settings begin
sys.path.insert(0, workflow.basedir)
from lib.cli import marker, plan
from lib.errors import InputError

workdir: workflow.basedir

try:
    RUNS = plan(config, HERE)
except InputError as error:
    sys.exit(str(error))


rule all:
    input:
        [marker(path, given) for path, given in RUNS.items()],


# Where there are fewer reports than cores, each gets several.
THREADS = max(1, (workflow.cores or 1) // max(1, len(RUNS)))


# A rule a report, for Snakemake reads no priority from a wildcard: 01 first, the tour last. It has no
# input files: whether a report is made again is decided by what it was made from, not when.
for k, (path, given) in enumerate(RUNS.items()):

    rule:
        name:
            f"report_{k}"
        output:
            touch(marker(path, given)),
        params:
            path=path,
            given=json.dumps(given),
            python=sys.executable,
        priority: len(RUNS) - k
        threads: THREADS
        resources:
            mem_mb=8_000,
            runtime=480,
        shell:
            "exec env OMP_NUM_THREADS={threads} {params.python:q} -m lib.cli one"
            " {params.path:q} {params.given:q}"
