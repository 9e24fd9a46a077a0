"""A hostile program under wall-clock timers.

Wall-clock timers interrupt every thread anywhere, also in system calls and in the interpreter's own bookkeeping, which
CPU timers reach rarely. `soak.py` runs this and judges its profiles.

    python stress.py --seconds 15 --rate 5000 --server file:///folder --records records.json
"""

import argparse
import atexit
import json
from pathlib import Path

import pyroscope
import stress_work
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from pyroscope import _arguments, _native
from pyroscope.otel import PyroscopeSpanProcessor


def run(seconds: float, rate: int, server: str) -> dict:
    settings = {"application_name": "stress", "server_address": server, "sample_rate": rate, "wall_clock": True}
    work = stress_work.Work()
    # Before the profiler's own, so that it is called after that.
    atexit.register(work.park)
    if not _arguments.launch(settings):
        raise RuntimeError("the profiler did not start")
    provider = TracerProvider(resource=Resource({"service.name": "stress"}), shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor(scope="all"))
    for thread in work.start(provider.get_tracer("stress"), seconds):
        thread.join()
    pyroscope.flush(60)
    return {"stats": pyroscope.stats(), "faults": _native.load_faults()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args()
    # The profiler runs on until Python's exit, as do the daemon threads.
    options.records.write_text(json.dumps(run(options.seconds, options.rate, options.server)))


if __name__ == "__main__":
    main()
