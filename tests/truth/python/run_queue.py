"""A program that burns and sleeps in spans on a processor that another process burns too, and notes how long it took.

    python run_queue.py --spans 20 --server file:///folder --records records.json
    python run_queue.py --spans 20 --server file:///folder --records records.json --threads
    python run_queue.py --spans 150 --server file:///folder --records records.json --turns

With `--threads` each span has a thread of its own, as requests have in some servers. With `--turns` spans of a few milliseconds take turns, and the
other process is stopped during each second one, `quiet`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyroscope
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor

BURNT, SLEPT = 0.05, 0.01
BURNT_IN_TURNS = 0.004


def burn(seconds: float = BURNT) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def queued_ns() -> int:
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spans", type=int, default=20)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--threads", action="store_true")
    parser.add_argument("--turns", action="store_true")
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
        taken = {"wall": 0, "cpu": 0, "queued": 0}

        def request() -> None:
            wall, cpu, queued = time.perf_counter_ns(), time.thread_time_ns(), queued_ns()
            with tracer.start_as_current_span("request"):
                burn()
                awake = queued_ns()
                time.sleep(SLEPT)
                # The end of a sleep is in the sleep, and in the kernel's number too.
                slept = queued_ns() - awake
            taken["wall"] += time.perf_counter_ns() - wall
            taken["cpu"] += time.thread_time_ns() - cpu
            taken["queued"] += queued_ns() - queued - slept

        def turn(name: str) -> None:
            other.send_signal(signal.SIGSTOP if name == "quiet" else signal.SIGCONT)
            time.sleep(SLEPT)
            queued = queued_ns()
            with tracer.start_as_current_span(name):
                burn(BURNT_IN_TURNS)
            taken[name] = taken.get(name, 0) + queued_ns() - queued

        for _ in range(options.spans):
            if options.turns:
                turn("quiet")
                turn("starved")
            elif options.threads:
                thread = threading.Thread(target=request)
                thread.start()
                thread.join()
            else:
                request()
        other.kill()
    pyroscope.shutdown()
    options.records.write_text(json.dumps(taken))


if __name__ == "__main__":
    main()
