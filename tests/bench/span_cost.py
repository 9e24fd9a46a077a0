"""What a span's start and end cost over the bare OpenTelemetry SDK, with the profiler running.

Blocks of spans on the bare SDK and with the span processor, in turn, in one process: the processor is made before its
block and shut down after it, so the bare blocks see nothing of it. A block's time is the thread's CPU clock over its
number of spans; the cost is the median of the differences between neighbours. The bare blocks of two neighbours,
compared by the same formula, are the control.

    root     each span is a root and gets the attribute
    child    each span is a child of one that has the attribute, and gets none (scope "root")

    python span_cost.py --server file:///folder --records records.json
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from pathlib import Path

SPANS = 1500


def roots(tracer) -> float:
    start = tracer.start_as_current_span
    began = time.thread_time_ns()
    for _ in range(SPANS):
        with start("span"):
            pass
    return (time.thread_time_ns() - began) / SPANS


def children(tracer) -> float:
    with tracer.start_as_current_span("root"):
        return roots(tracer)


def measure(seconds: float, make_processor) -> dict[str, dict[str, float]]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.resources import Resource

    resource = Resource({"service.name": "cost"})
    bare = TracerProvider(resource=resource, shutdown_on_exit=False).get_tracer("bare")

    def with_processor(block) -> float:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        processor = make_processor()
        provider.add_span_processor(processor)
        try:
            return block(provider.get_tracer("ours"))
        finally:
            processor.shutdown()

    for block in (roots, children):
        block(bare)
        with_processor(block)
    gc.collect()
    gc.freeze()
    found: dict[str, list[tuple[float, float, float]]] = {"root": [], "child": []}
    end = time.process_time() + seconds
    while time.process_time() < end:
        for name, block in (("root", roots), ("child", children)):
            found[name].append((block(bare), with_processor(block), block(bare)))
    return {name: report(rounds) for name, rounds in found.items()}


def report(rounds: list[tuple[float, float, float]]) -> dict[str, float]:
    over = [with_it - (before + after) / 2 for before, with_it, after in rounds]
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(over, k=len(over))) for _ in range(400))
    return {
        "ns": statistics.median(over),
        "low_ns": medians[9],
        "high_ns": medians[-10],
        "bare_ns": statistics.median(before for before, _, _ in rounds),
        "control_ns": statistics.median(after - before for before, _, after in rounds),
        "rounds": len(rounds),
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args(arguments)

    import pyroscope
    from pyroscope.otel import PyroscopeSpanProcessor

    pyroscope.configure(application_name="cost", server_address=options.server, sample_rate=100)
    record = measure(options.seconds, PyroscopeSpanProcessor)
    pyroscope.shutdown()
    options.records.write_text(json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1:])
