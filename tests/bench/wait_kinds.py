"""Very many waits of 0.1 to 5 ms, of four kinds, so that of most kept samples each stands for several: how long they were in all.

Each kind has its spans. What a wait of I/O, for a lock or by sleeping took is the thread's clock around its call, less its CPU time;
one for the GIL is from when C code wanted it, by its own clock, until Python has it: another thread keeps it meanwhile, in C code.

    python wait_kinds.py --seconds 30 --server file:///folder --records records.json
"""

import argparse
import collections
import ctypes
import json
import queue
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyroscope
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor

#: Seconds that a wait takes.
LEAST, MOST = 0.0001, 0.005
#: Nanoseconds within which the other thread has taken the GIL.
LEAD_NS = 300_000
WAITS_OF_A_SPAN = 20


def load() -> tuple[ctypes.CDLL, ctypes.PyDLL]:
    """The same functions twice: called without the GIL, and with it."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "wait_kinds.so")
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
        without, with_gil = ctypes.CDLL(str(library)), ctypes.PyDLL(str(library))
    without.wanted_after.restype = ctypes.c_longlong
    without.wanted_after.argtypes = with_gil.keep_for.argtypes = [ctypes.c_long]
    return without, with_gil


class Kinds:
    """A wait of each kind, which another thread ends; each returns the nanoseconds that it took."""

    def __init__(self) -> None:
        self._without, self._with_gil = load()
        self._ours, self._theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._lock.acquire()
        self._asked: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._other = threading.Thread(target=self._serve)
        self._other.start()

    def io(self, seconds: float) -> int:
        self._later(seconds, lambda: self._theirs.send(b"x"))
        return off_cpu_ns(lambda: self._ours.recv(1))

    def lock(self, seconds: float) -> int:
        self._later(seconds, self._lock.release)
        return off_cpu_ns(self._lock.acquire)

    def sleep(self, seconds: float) -> int:
        return off_cpu_ns(lambda: time.sleep(seconds))

    def gil(self, seconds: float) -> int:
        self._asked.put(lambda: self._with_gil.keep_for(LEAD_NS + round(seconds * 1e9)))
        wanted_ns = self._without.wanted_after(LEAD_NS)
        return time.perf_counter_ns() - wanted_ns

    def end(self) -> None:
        self._asked.put(None)
        self._other.join()

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        def act() -> None:
            time.sleep(seconds)
            action()

        self._asked.put(act)

    def _serve(self) -> None:
        while action := self._asked.get():
            action()


def off_cpu_ns(call: Callable[[], object]) -> int:
    began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
    call()
    return time.perf_counter_ns() - began - (time.thread_time_ns() - began_cpu)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args(arguments)

    kinds, chance = Kinds(), random.Random()
    pyroscope.configure(application_name="kinds", server_address=options.server, wall_time=True)
    provider = TracerProvider(resource=Resource({"service.name": "kinds"}), shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor())
    tracer = provider.get_tracer("kinds")
    measured_ns: collections.Counter[str] = collections.Counter()
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        for kind in (kinds.io, kinds.lock, kinds.sleep, kinds.gil):
            with tracer.start_as_current_span(kind.__name__):
                for _ in range(WAITS_OF_A_SPAN):
                    measured_ns[kind.__name__] += kind(chance.uniform(LEAST, MOST))
    kinds.end()
    pyroscope.shutdown()
    samples = pyroscope.stats()["waits_sampled"]["samples"]
    options.records.write_text(json.dumps({"measured_ns": measured_ns, "samples": samples}))


if __name__ == "__main__":
    main(sys.argv[1:])
