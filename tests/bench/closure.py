"""Whether all time of spans is found: threads that run, sleep, and wait for sockets, locks and each other, all in spans.

Waits take some ten milliseconds: they are so few that most become samples, which leaves half a percent of a minute's sum to chance.

Prints the spans' wall time by the threads' own clocks, and how long these waited for a processor (schedstat), which a wait that
ends late has in it and time between waits has not.

    python closure.py --server file:///folder --records records.json
"""

import argparse
import json
import os
import random
import socket
import sys
import threading
import time
from pathlib import Path

import pyroscope
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args(arguments)

    # At 1,000 Hz the sums of CPU time are known to a percent after some seconds.
    pyroscope.configure(application_name="closure", server_address=options.server, wall_time=True, sample_rate=1000)
    provider = TracerProvider(resource=Resource({"service.name": "closure"}), shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor(scope="all"))
    tracer = provider.get_tracer("closure")
    end = time.monotonic() + options.seconds
    shared = threading.Lock()
    sums = {"wall_ns": 0, "cpu_ns": 0, "delay_ns": 0, "requests": 0}

    def delay_ns() -> int:
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1])

    def serve(number: int) -> None:
        chance = random.Random(number)
        ours, theirs = socket.socketpair()
        wall = cpu = requests = 0
        began_delay = delay_ns()
        while time.monotonic() < end:
            with tracer.start_as_current_span("request"):
                began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
                for _ in range(chance.randrange(1, 8)):
                    json.dumps(list(range(10_000)))
                with shared:
                    sum(range(150_000))
                threading.Timer(chance.random() * 0.06, theirs.send, (b"x",)).start()
                ours.recv(1)
                time.sleep(chance.random() * 0.03)
                wall += time.perf_counter_ns() - began
                cpu += time.thread_time_ns() - began_cpu
            requests += 1
        delay = delay_ns() - began_delay
        with shared:
            for name, more in (("wall_ns", wall), ("cpu_ns", cpu), ("delay_ns", delay), ("requests", requests)):
                sums[name] += more

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(options.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pyroscope.shutdown()
    options.records.write_text(json.dumps({**sums, "processors": os.cpu_count()}))


if __name__ == "__main__":
    main(sys.argv[1:])
