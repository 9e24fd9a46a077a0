"""What the profiler costs a service: CPU time an iteration at 100 Hz, with it against without.

Eight threads, each 55 frames deep, handle requests of a few milliseconds: a root span, three children, and what
handlers do (JSON, a regular expression, sorting, a template, a hash). All in one process: two processes differ by more
than the profiler costs (hash seeds, where memory lies), and one that is switched on and off does not.

Slices of a fixed number of requests run without, with, with, without the profiler, and so on (ABBA), so that a machine that
slows down meets both alike. A slice without has neither profiler nor span processor. A slice with ends with a `flush`
inside of the measured time: all its drains, its cut, encoding and upload are in it. A slice is shorter than a window, so
this happens more often than in a service and the cost is an upper bound. Starting and stopping are not in it. CPU time is
the process's, of all its threads, the profiler's own among them. The process keeps to one processor: on several, where its
threads happen to meet changes their CPU time more than the profiler does.

A pair are two neighbouring slices, one with and one without; `pairs` is the mean of their relative differences in percent, with
its interval of 95 % (Student's t). The control pairs the two slices without of neighbouring blocks by the same formula.
Beside it stands what the samples should cost: those counted in a second of CPU time, times what one takes in this
process with cold caches (sample_cost.py).

    python overhead.py --pairs 60 --requests 400 --server file:///folder --records records.json
"""

import argparse
import collections
import gc
import hashlib
import json
import math
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import sample_cost

THREADS, FRAMES = 8, 55
RATE = 100
#: Student's t for 95 %, by degrees of freedom; between them the next lower one, which gives the wider interval.
T_95 = {1: 12.71, 2: 4.303, 3: 3.182, 5: 2.571, 8: 2.306, 12: 2.179, 20: 2.086, 29: 2.045, 40: 2.021, 60: 2.0, 120: 1.98}
WORD = re.compile(r"[a-z]+(\d+)")


def body_of_a_request() -> str:
    lines = [{"sku": f"item{n}", "price": 100 + n * 7 % 31, "count": n % 5, "tags": [f"tag{n % 3}"]} for n in range(240)]
    return json.dumps({"user": 17, "lines": lines})


BODY = body_of_a_request()


def parse(body: str) -> list[dict]:
    lines = json.loads(body)["lines"]
    for line in lines:
        line["number"] = int(WORD.fullmatch(line["sku"])[1])
    return lines


def price(lines: list[dict]) -> dict[str, int]:
    totals: collections.Counter[str] = collections.Counter()
    for _ in range(8):
        for line in sorted(lines, key=lambda line: (line["price"], -line["number"])):
            totals[line["tags"][0]] += line["price"] * line["count"]
    return totals


def render(lines: list[dict], totals: dict[str, int]) -> str:
    rows = [f"<tr><td>{line['sku']:>10}</td><td>{line['price'] / 100:.2f}</td></tr>" for _ in range(4) for line in lines]
    page = "\n".join([*rows, *(f"<b>{name}: {total}</b>" for name, total in totals.items())])
    return hashlib.sha256(page.encode()).hexdigest() + json.dumps(totals)


def handle(tracer) -> str:
    with tracer.start_as_current_span("POST /order"):
        with tracer.start_as_current_span("parse"):
            lines = parse(BODY)
        with tracer.start_as_current_span("price"):
            totals = price(lines)
        with tracer.start_as_current_span("render"):
            return render(lines, totals)


class Service:
    """Threads that wait, at their depth, for slices of requests."""

    def __init__(self, threads: int = THREADS) -> None:
        self.begin, self.done = threading.Barrier(threads + 1), threading.Barrier(threads + 1)
        self.tracer, self.requests = None, 0
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        # What `handle` calls, such as `price`, is the frame at this depth.
        sample_cost.at_depth(FRAMES - 1, self._serve)

    def _serve(self, handle: Callable = handle, *more: object) -> None:
        while True:
            self.begin.wait()
            if self.tracer is None:
                return
            for _ in range(self.requests):
                handle(self.tracer, *more)
            self.done.wait()

    def slice(self, tracer, requests: int) -> None:
        """Each thread handles that many requests."""
        self.tracer, self.requests = tracer, requests
        self.begin.wait()
        self.done.wait()

    def end(self) -> None:
        self.tracer = None
        self.begin.wait()
        for thread in self._threads:
            thread.join()


class Slices:
    """Slices with and without the profiler, and what the profiler counted."""

    def __init__(self, pyroscope, server: str, requests: int) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        self.pyroscope, self.server, self.each = pyroscope, server, max(1, requests // THREADS)
        self.make_provider: Callable[[], TracerProvider] = lambda: TracerProvider(
            resource=Resource({"service.name": "overhead"}), shutdown_on_exit=False
        )
        self.bare = self.make_provider().get_tracer("bare")
        self.service = Service()
        #: Ours has statistics and `flush`; others are measured without.
        self.counts_samples = hasattr(pyroscope, "stats")
        self.counts: collections.Counter[str] = collections.Counter()

    def without(self) -> float:
        """CPU nanoseconds a request."""
        return self._time(self.bare, lambda: None)

    def with_profiler(self) -> float:
        from pyroscope.otel import PyroscopeSpanProcessor

        self.pyroscope.configure(application_name="overhead", server_address=self.server, sample_rate=RATE)
        provider = self.make_provider()
        processor = PyroscopeSpanProcessor()
        provider.add_span_processor(processor)
        finish = (lambda: self.pyroscope.flush(30)) if self.counts_samples else (lambda: None)
        each = self._time(provider.get_tracer("with"), finish)
        processor.shutdown()
        if self.counts_samples:
            stats = self.pyroscope.stats()
            self.counts["samples"] += stats["taken"]["samples"]
            self.counts["own_ns"] += stats["own_cpu_ns"]
            self.counts["cpu_ns"] += round(each * self.each * THREADS)
        self.pyroscope.shutdown()
        return each

    def _time(self, tracer, finish: Callable[[], object]) -> float:
        # The threads get their timers, and the interpreter its inline caches, before the clock is read.
        self.service.slice(tracer, 2)
        gc.collect()
        began = time.process_time_ns()
        self.service.slice(tracer, self.each)
        finish()
        return (time.process_time_ns() - began) / (self.each * THREADS)


def measure(slices: Slices, pairs: int) -> dict[str, object]:
    """Blocks of four slices, without, with, with, without: two pairs each, and one of the control between two blocks."""
    slices.without()
    slices.with_profiler()
    slices.counts.clear()
    over, control, bare, last = [], [], [], None
    for _ in range(math.ceil(pairs / 2)):
        first, with_1, with_2, second = slices.without(), slices.with_profiler(), slices.with_profiler(), slices.without()
        over += [100 * (with_1 / first - 1), 100 * (with_2 / second - 1)]
        bare += [first, second]
        # Forwards and backwards in turn, so that a drift falls out of the control too.
        if last is not None:
            control.append(100 * (first / last - 1) * (-1) ** len(control))
        last = second
    return {
        "pairs": interval(over),
        "control": interval(control),
        "bare_ns": statistics.median(bare),
        "requests_a_slice": slices.each * THREADS,
        **slices.counts,
    }


def interval(values: list[float]) -> dict[str, float]:
    """The mean with its interval of 95 %; without bounds where one value tells nothing of its neighbours."""
    if len(values) < 2:
        return {"mean": statistics.fmean(values or [0.0]), "low": -math.inf, "high": math.inf, "count": len(values)}
    t = T_95[max(degrees for degrees in T_95 if degrees < len(values))]
    mean, half = statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half, "count": len(values)}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--requests", type=int, default=480, help="in a slice, of all threads")
    parser.add_argument("--sample-seconds", type=float, default=4)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args(arguments)

    import pyroscope

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    slices = Slices(pyroscope, options.server, options.requests)
    # A collection of garbage in one of two slices would be most of their difference.
    gc.collect()
    gc.freeze()
    record = measure(slices, options.pairs)
    slices.service.end()

    if slices.counts_samples:
        pyroscope.configure(application_name="overhead", server_address=options.server, sample_rate=RATE)
        record["sample"] = sample_cost.time_samples(pyroscope, "cold", options.sample_seconds)
        pyroscope.shutdown()
    options.records.write_text(json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1:])
