"""multiprocessing's children: each profiles, and all of it arrives once, though they leave past atexit."""

import os
import sys

import pytest
from conftest import TESTS


@pytest.mark.parametrize("kind", ["Process", "Pool", "ProcessPoolExecutor"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_send_all_that_they_sampled(served, method, kind):
    served.start(sys.executable, "-W", "ignore", TESTS / "served" / "jobs.py", method, kind)
    assert served.process.wait(120) == 0, served.output()
    workers = {int(pid) for pid in served.output().split()}
    assert 1 <= len(workers) <= 2 and os.getpid() not in workers
    # The main module is loaded by the parent alone, or by each child too, also by one that comes too late for a job.
    loaders, late = (1, 0) if method == "fork" else (1 + len(workers), 2 - len(workers))
    served.check(workers, loaders, late)
