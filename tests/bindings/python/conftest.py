"""Every rank runs the same tests. Each has a group of its own, which a rank whose test fails aborts, so that the others fail at
once and all go on with the next test together."""
import importlib.util
import re
import subprocess

import pytest

import dtr


def why_no_mpi4py():
    """Why tests of mpi4py are left out, or None. Importing one of another MPI would be two of them in one process."""
    try:
        theirs = importlib.util.find_spec("mpi4py.MPI")
    except ImportError:
        return "mpi4py is not installed"
    used = [set(re.findall(r"libmpi\w*\.so[.\d]*", subprocess.run(["ldd", file], capture_output=True, text=True).stdout))
            for file in (theirs.origin, dtr._dtr.__file__)]
    return None if used[0] & used[1] else "mpi4py uses %s, the library %s" % tuple(" ".join(names) for names in used)


@pytest.fixture(scope="session", autouse=True)
def world():
    made = dtr.World()  # the last one to close, which then finalises MPI
    yield made
    made.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    setattr(item, "report_" + call.when, outcome.get_result())


@pytest.fixture
def group(world, request):
    made = world.group.split(0, timeout=60)
    yield made
    report = getattr(request.node, "report_call", None)
    if report is not None and report.failed and not made.closed:
        made.abort("rank %d failed in %s" % (made.rank, request.node.name))
    made.close()
