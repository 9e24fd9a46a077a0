"""A program that burns and sleeps in spans on a processor that another process burns too, and notes how long it took.

    python run_queue.py --spans 20 --server file:///folder --records records.json
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyroscope
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor

BURNT, SLEPT = 0.05, 0.01


def burn() -> None:
    until = time.thread_time() + BURNT
    while time.thread_time() < until:
        pass


def queued_ns() -> int:
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spans", type=int, default=20)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pyroscope.configure(application_name="run_queue", server_address=options.server, sample_rate=250, wall_time=True)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor())
    tracer = provider.get_tracer("run_queue")
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        # The first expiry says from when on a thread's time is known, and under load this may be half a second later than asked.
        while pyroscope.stats()["taken"]["samples"] == 0:
            burn()
        wall, cpu, queued = time.perf_counter_ns(), time.thread_time_ns(), queued_ns()
        for _ in range(options.spans):
            with tracer.start_as_current_span("request"):
                burn()
                time.sleep(SLEPT)
        taken = {
            "wall": time.perf_counter_ns() - wall,
            "cpu": time.thread_time_ns() - cpu,
            "queued": queued_ns() - queued,
        }
        other.kill()
    pyroscope.shutdown()
    options.records.write_text(json.dumps(taken))


if __name__ == "__main__":
    main()
