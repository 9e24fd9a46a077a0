"""What the tests share. They run against the installed wheel, on each Python that it supports."""

import math
import pathlib
import subprocess
import sys
import textwrap
import time

import pytest

import pyroscope
from pyroscope import _arguments, _messages, _native

TESTS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS.parents[1] / "tests" / "support" / "python"))

from children import PATHS, TIMEOUT  # noqa: E402
from pprof import samples_of  # noqa: E402

sys.path[:0] = map(str, PATHS)


def burn(seconds: float) -> None:
    """Burns this thread's CPU time, and while a profiler runs some more until there was a sample.

    A kernel that has much to do looks at a thread's timer every 20 to 100 ms of its CPU time only, and
    more rarely where much else runs.
    """
    enough = kept() + 1
    end = time.thread_time() + seconds
    latest = end + 2
    x = 0
    while time.thread_time() < end or (kept() < enough and time.thread_time() < latest):
        for i in range(200):
            x += i * i


def kept() -> float:
    """Samples that were taken and not lost; no end of them where none are taken."""
    stats = _native.stats()
    if not stats["threads"]:
        return math.inf
    return stats["taken"]["samples"] - stats["dropped_ring"]["samples"]


class Recording:
    """A profiler that writes into a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def start(self, **settings) -> bool:
        defaults = {"application_name": "test", "server_address": f"file://{self.folder}", "sample_rate": 1000}
        return _arguments.launch({**defaults, **settings})

    def start_dense(self) -> None:
        """Samples by wall time, 2,000 a second: much evidence in little time."""
        assert self.start(wall_clock=True, sample_rate=2000)

    def samples(self):
        """Stops, and returns all that was sampled."""
        pyroscope.stop()
        return samples_of(self.folder)

    def samples_in(self, function: str):
        return [sample for sample in self.samples() if function in sample.names]


@pytest.fixture
def recording(tmp_path):
    """A profiler of this process, stopped at the end."""
    yield Recording(tmp_path)
    pyroscope.stop()


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Each test begins as a program does: nothing configured, nothing in the environment, nothing warned of."""
    import os

    for name in os.environ:
        if name.startswith(("PYROSCOPE_", "OTEL_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(_arguments, "configured", False)
    monkeypatch.setattr(_messages, "_warned", set())
    yield
    pyroscope.stop()


@pytest.fixture
def python(tmp_path):
    """Runs a program in a process of its own and returns what it printed; it must end well."""

    def run(program: str, env=None, args=(), code=0):
        import os

        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYROSCOPE_", "OTEL_"))}
        environment["PYTHONPATH"] = os.pathsep.join(map(str, (TESTS, *PATHS)))
        environment.update(env or {})
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), *map(str, args)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert done.returncode == code, done.stdout + done.stderr
        run.stderr = done.stderr
        return done.stdout

    return run


@pytest.fixture
def served(tmp_path):
    """A program of several processes, whose samples a receiver here takes."""
    from receiver import Receiver
    from serving import Served

    with Receiver() as receiver:
        program = Served(tmp_path, receiver)
        yield program
        program.kill()
