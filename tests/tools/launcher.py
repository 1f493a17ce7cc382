"""A program under a launcher that its MPI does not understand: N worlds of one rank, and who is told (INI1, INI3).

launcher.py PROGRAM MPIEXEC: PROGRAM makes a world and says "world of N"; MPIEXEC is that of its MPI. The launchers of Open
MPI and MPICH that are not of this MPI are tried where they are installed, and variables are set by hand.
"""
import os
import shutil
import subprocess
import sys

from tool import expect, problems

program, own = sys.argv[1], os.path.realpath(sys.argv[2])
RANKS = 3
WARNING = "has not understood the launcher"
PREFIXES = ("OMPI_COMM_WORLD", "PMI_", "PMIX_", "SLURM_", "MPI_LOCAL", "FLUX_", "MV2_", "JSM_")


def run(command, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(PREFIXES)}
    env.update({"DTR_RECORDER_DIR": "none"}, **more)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, env=env,
                          check=False, timeout=120)
    return done.returncode, done.stdout


def check(what, command, good, warnings, text="", **more):
    status, out = run(command, **more)
    expect((status == 0) == good, "%s: status %d\n%s", what, status, out)
    expect(out.count(WARNING) == warnings, "%s: %d warnings, expected %d\n%s", what, out.count(WARNING), warnings, out)
    expect(text in out, "%s: \"%s\" is not in\n%s", what, text, out)


def is_own(launcher):
    version = subprocess.run([launcher, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             universal_newlines=True, check=False).stdout
    mine = subprocess.run([own, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                          check=False).stdout
    return ("OpenRTE" in version or "Open MPI" in version) == ("OpenRTE" in mine or "Open MPI" in mine)


check("alone", [program], True, 0)
check("its own launcher", [own, "-n", str(RANKS), program], True, 0)
check("its own launcher, one rank", [own, "-n", "1", program], True, 0)
check("a step of srun", [program], True, 1, "--mpi=pmix", SLURM_STEP_ID="0", SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="4")
check("its third rank", [program], True, 0, SLURM_STEP_ID="0", SLURM_PROCID="2", SLURM_STEP_NUM_TASKS="4")
check("a shell of Slurm", [program], True, 0, SLURM_NTASKS="4", SLURM_PROCID="0", SLURM_JOB_ID="7")
check("an error", [program], False, 1, "DTR_LAUNCHER_CHECK=error", SLURM_STEP_ID="0", SLURM_PROCID="2",
      SLURM_STEP_NUM_TASKS="4", DTR_LAUNCHER_CHECK="error")
check("off", [program], True, 0, SLURM_STEP_ID="0", SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="4", DTR_LAUNCHER_CHECK="off")
for name in ("mpiexec.openmpi", "mpiexec.hydra"):
    other = shutil.which(name)
    if other is None or is_own(other):
        continue
    print("%s is foreign here" % name)
    check("a foreign launcher", [other, "-n", str(RANKS), program], True, 1, "has started %d processes" % RANKS)
    check("a foreign launcher, one rank", [other, "-n", "1", program], True, 0)
    check("a foreign launcher, as an error", [other, "-n", str(RANKS), "sh", "-c", program + " || true"], True, RANKS,
          "DTR_ERR_STATE", DTR_LAUNCHER_CHECK="error")
for problem in problems:
    print(problem)
sys.exit(1 if problems else 0)
