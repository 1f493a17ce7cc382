"""Every rank runs the same tests. Each has a group of its own, which a rank whose test fails aborts, so that the others fail at
once and all go on with the next test together."""
import pytest

import dtr


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
