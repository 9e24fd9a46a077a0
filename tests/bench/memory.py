"""What spans leave behind in memory: the resident size of a process after many of them, with us and without.

    names     spans with distinct names, one after the other on one thread
    foreign   spans that one thread starts and makes current, and another thread ends

Each is a process of its own, on the bare OpenTelemetry SDK or with the profiler and the span processor. Its resident
size is read when a tenth of the spans is done, half of them, and all: memory that grows with the number of spans shows
between half and all, what the profiler needs in itself shows in all of them.

    python memory.py                                     measures both, prints a table
    python memory.py names --spans 1000000 [--bare] --server file:///folder --records records.json
"""

import argparse
import gc
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

SPANS = {"names": 1_000_000, "foreign": 100_000}
#: Over the bare SDK, at the end; and what the last half of the spans may add.
BOUND_MIB, FLAT_MIB = 20, 2


def resident_mib() -> float:
    """The memory of this process that is in RAM."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def names(tracer, spans: int) -> Iterator[int]:
    """Spans with distinct names, each of which is current for a moment; yields the number of those done."""
    for number in range(spans):
        with tracer.start_as_current_span(f"GET /item/{number}"):
            pass
        yield number + 1


def foreign(tracer, spans: int) -> Iterator[int]:
    """Spans that end on a thread that did not start them; yields the number of those done."""
    from opentelemetry import trace

    started: queue.Queue = queue.Queue(100)

    def ends() -> None:
        while (span := started.get()) is not None:
            with trace.use_span(span):
                span.end()
            started.task_done()

    thread = threading.Thread(target=ends)
    thread.start()
    for number in range(spans):
        with tracer.start_as_current_span(f"job {number}", end_on_exit=False) as span:
            started.put(span)
        if number % 100 == 99:
            started.join()
            yield number + 1
    started.put(None)
    thread.join()


KINDS = {"names": names, "foreign": foreign}


def measure(kind: str, spans: int, server: str, bare: bool) -> dict[str, float]:
    """Runs one kind in this process; its resident MiB at three times."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider(resource=Resource({"service.name": "memory"}), shutdown_on_exit=False)
    if not bare:
        import pyroscope
        from pyroscope.otel import PyroscopeSpanProcessor

        pyroscope.configure(application_name="memory", server_address=server, sample_rate=100)
        provider.add_span_processor(PyroscopeSpanProcessor())
    marks = {spans // 10: "tenth", spans // 2: "half", spans: "all"}
    found: dict[str, float] = {}
    for done in KINDS[kind](provider.get_tracer("memory"), spans):
        if done in marks:
            found[marks[done]] = resident_mib()
    if not bare:
        stats = pyroscope.stats()
        found["samples"] = stats["taken"]["samples"]
        pyroscope.shutdown()
    return found


def table(scale: float) -> bool:
    """Measures all in processes of their own and prints what they say; whether it is within the bounds."""
    print(f"{'MiB resident after':<40}{'a tenth':>9}{'half':>9}{'all':>9}")
    good = True
    for kind, spans in SPANS.items():
        spans = int(spans * scale) // 1000 * 1000
        bare, ours = (in_a_child(kind, spans, bare) for bare in (True, False))
        for who, found in (("bare SDK", bare), ("ours", ours)):
            numbers = "".join(f"{found[mark]:>9.1f}" for mark in ("tenth", "half", "all"))
            print(f"{kind + ', ' + format(spans, ',') + ' spans, ' + who:<40}{numbers}")
        over, growth = ours["all"] - bare["all"], ours["all"] - ours["half"]
        good = good and over <= BOUND_MIB and growth <= FLAT_MIB
        print(f"{'':<8}ours over bare {over:+.1f} (<= +{BOUND_MIB}), its last half {growth:+.1f} (<= +{FLAT_MIB}), ", end="")
        print(f"{ours['samples']:.0f} samples")
    return good


def in_a_child(kind: str, spans: int, bare: bool) -> dict[str, float]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYROSCOPE_", "OTEL_"))}
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "records.json")
        command = [sys.executable, __file__, kind, "--spans", str(spans), "--records", str(records)]
        command += ["--server", Path(folder, "profiles").as_uri(), *(["--bare"] if bare else [])]
        subprocess.run(command, env=environment, check=True)
        return json.loads(records.read_text())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS, nargs="?")
    parser.add_argument("--spans", type=int, default=100_000)
    parser.add_argument("--scale", type=float, default=1, help="of the table: a part of the spans")
    parser.add_argument("--bare", action="store_true", help="the SDK alone")
    parser.add_argument("--server")
    parser.add_argument("--records", type=Path)
    options = parser.parse_args()
    if options.kind is None:
        return 0 if table(options.scale) else 1
    record = measure(options.kind, options.spans, options.server, options.bare)
    options.records.write_text(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
