"""What the served programs share: a profiler, CPU time in functions that name their process, and statistics at its end.

`REPORTS` is a folder: each process leaves its stats() there, after whatever sent its last samples.
"""

import json
import os
import pathlib
import time

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from truth_program import burn

import pyroscope
from pyroscope import _lifecycle, _server_shutdown
from pyroscope.otel import PyroscopeSpanProcessor


def reporting(send):
    def send_and_report(*arguments):
        sent = send(*arguments)
        path = pathlib.Path(os.environ["REPORTS"], f"{os.getpid()}.json")
        stats = pyroscope.stats()
        if not path.exists() or stats["taken"]["samples"]:
            path.write_text(json.dumps(stats))
        return sent

    return send_and_report


_lifecycle.stop = reporting(_lifecycle.stop)
_server_shutdown.flush = reporting(_server_shutdown.flush)


def burn_sampled(nanoseconds: int) -> None:
    """Burns until there are samples of it, which a kernel that has much to do may put off; for two seconds at most."""
    before = pyroscope.stats()["taken"]["samples"]
    burn(nanoseconds)
    for _ in range(100):
        if pyroscope.stats()["taken"]["samples"] > before:
            break
        burn(20_000_000)


def work(name: str, seconds: float) -> int:
    """Burns in a function that names this process, whose id is returned."""
    pid = os.getpid()
    made = {"burn": burn_sampled}
    exec(f"def {name}_{pid}(): burn({int(seconds * 1e9)})", made)
    made[f"{name}_{pid}"]()
    return pid


def configure():
    """A tracer whose spans are followed, and 0.1 s of CPU time where the program is loaded."""
    pyroscope.configure(application_name="served", sample_rate=250, upload_interval=600)
    provider = TracerProvider(resource=Resource({"service.name": "served"}))
    provider.add_span_processor(PyroscopeSpanProcessor())
    began = time.thread_time_ns()
    work("loader", 0.1)
    pathlib.Path(os.environ["REPORTS"], f"loader_{os.getpid()}").write_text(str(time.thread_time_ns() - began))
    return provider.get_tracer("served")
