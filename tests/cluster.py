"""The cluster's road, on a SLURM of this machine's own: what `make cluster` does.

    python tests/cluster.py [N]

A one-node cluster without accounting starts on the loopback, README's command sends the smoke
series (or its part N) through it as it is printed, several jobs at once with one cache, and the
tables must equal those of `make report PROFILE=smoke`. Then it is taken down; nothing is left on
the machine but Debian's packages, where they were missing and could be had.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from arms import ROOT, arm, differences, environment, tables

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
EXTRA = "snakemake-executor-plugin-slurm"
os.environ["PATH"] += ":/usr/sbin"

CONFIGURATION = """ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=64000 Gres=gpu:{cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Cannot(Exception):
    """One sentence for why there can be no cluster here."""


def install() -> None:
    """Get what is missing from Debian and from the package index. Raises Cannot."""
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        if os.geteuid() or not shutil.which("apt-get"):
            raise Cannot(
                f"no cluster can be started here ({', '.join(missing)} missing): install Debian's "
                "slurm-wlm and munge, or run this as root where apt-get is."
            )
        get = ["apt-get", "install", "--yes", "--no-install-recommends", "slurm-wlm", "munge"]
        for command in (["apt-get", "update"], get):
            subprocess.run(command, capture_output=True)
        if not all(map(shutil.which, PROGRAMS)):
            raise Cannot("no cluster can be started here: apt-get brings no slurm-wlm and munge.")


def free_ports(n: int) -> list[int]:
    with contextlib.ExitStack() as open_ones:
        sockets = [open_ones.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def cluster(home: Path, cpus: int) -> Iterator[None]:
    """A cluster of this machine, up and ready; $SLURM_CONF names it. Raises Cannot."""
    import pwd

    host, user = socket.gethostname().partition(".")[0], pwd.getpwuid(os.geteuid()).pw_name
    for name in ("state", "spool"):
        (home / name).mkdir()
    (home / "slurm.conf").write_text(
        CONFIGURATION.format(host=host, user=user, home=home, ports=free_ports(2), cpus=cpus)
    )
    # GPUs in name alone, so that a job that asks for one is served.
    for k in range(cpus):
        (home / f"gpu{k}").touch()
    (home / "gres.conf").write_text(f"Name=gpu File={home}/gpu[0-{cpus - 1}]\n")
    (home / "munge.key").write_bytes(os.urandom(1024))
    (home / "munge.key").chmod(0o400)
    names = ("key", "socket", "pid", "log", "seed")
    places = {"key": "key-file", "log": "log-file", "pid": "pid-file", "seed": "seed-file"}
    os.environ["SLURM_CONF"] = str(home / "slurm.conf")
    # In a job the plugin takes $SLURM_CONF away, for it looks like an option of the outer srun.
    (home / "bin").mkdir()
    (home / "bin/srun").write_text(
        f'#!/bin/sh\nSLURM_CONF={home}/slurm.conf exec {shutil.which("srun")} "$@"\n'
    )
    (home / "bin/srun").chmod(0o755)
    os.environ["PATH"] = f"{home}/bin:{os.environ['PATH']}"
    daemons = [
        [
            *("munged", "--foreground", "--force"),
            *(f"--{places.get(name, name)}={home}/munge.{name}" for name in names),
        ],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", host],
    ]
    running = []
    try:
        for daemon in daemons:
            with open(home / f"{daemon[0]}.out", "w") as out:
                running.append(subprocess.Popen(daemon, stdout=out, stderr=out))
            time.sleep(1)
        for _ in range(60):
            states = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True)
            if states.stdout.strip() == "idle":
                break
            time.sleep(0.5)
        else:
            said = [(home / f"{d[0]}.out").read_text().strip()[-300:] for d in daemons]
            raise Cannot(f"SLURM does not come up here: {' / '.join(filter(None, said))}")
        yield
    finally:
        subprocess.run(["scancel", "--user", user], capture_output=True)
        for process in reversed(running):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def printed() -> list[str]:
    """README's command for SLURM, but with the smoke profile and its model."""
    text = (ROOT / "README.md").read_text()
    (line,) = re.findall(r"^    snakemake (--executor slurm .*)$", text, re.M)
    options = shlex.split(line.partition(" --config ")[0])
    return [sys.executable, "-m", "snakemake", *options, "--config", "profile=smoke", "gpus=1"]


def run(command: list[str], root: Path, log: Path, **variables: str) -> float:
    """Run a series in an arm; its seconds. Raises SystemExit with the end of its log."""
    started = time.time()
    with open(log, "w") as file:
        done = subprocess.run(
            command, cwd=root, env=environment(root, **variables), stdout=file, stderr=file
        )
    if done.returncode:
        failed = sorted((root / ".snakemake/slurm_logs").rglob("*.log"))
        told = "".join(path.read_text() for path in [log, *failed[:1]])
        raise SystemExit(f"{shlex.join(command)} failed ({done.returncode}):\n{told[-6000:]}")
    return time.time() - started


def main(numbers: str) -> None:
    part = [f"number={numbers}"] if numbers else []
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        home = Path(folder)
        plain, slurm = arm(home, "report"), arm(home, "slurm")
        install()
        with cluster(home, cpus=max(2, cores)):
            print(f"SLURM is up on the loopback; running {shlex.join(printed()[3:] + part)}")
            took = run([*printed(), *part], slurm, home / "slurm.log")
            jobs = re.findall(r"SLURM jobid (\d+)", (home / "slurm.log").read_text())
            print(f"{len(set(jobs))} jobs done in {took:.0f} s; now make report", flush=True)
        # As many at once as there are cores: one thread for each, as on the nodes.
        given = {"PROFILE": "smoke", "JOBS": str(cores)} | ({"N": numbers} if numbers else {})
        series = [sys.executable, "-m", "lib.reports.series"]
        took = run(series, plain, home / "report.log", **given)
        print(f"make report done in {took:.0f} s")
        one, other = tables(slurm), tables(plain)
        wrong = differences(one, other)
        print(*wrong, sep="\n")
        if wrong or not one:
            raise SystemExit(f"{len(wrong)} of {len(one)} tables differ from make report's.")
        print(f"all {len(one)} tables equal those of make report, byte for byte.")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "")
    except Cannot as reason:
        print(reason)
        sys.exit(2)
