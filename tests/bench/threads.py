"""Many threads: made and ended one after the other, and alive at once.

    ended   threads that burn a little over a millisecond each, four at a time, at 1 kHz: each has at least one expiry due, so
            there must be a sample (or a closing one) for each, and all their CPU time in the profiles
    alive   threads that live at the same time and wait, while one burns: what stats() says of them, and the CPU time of the
            profiler's own threads meanwhile; then each burns a millisecond and ends, and must be in the profiles too

The memory of rings is what `configure` adds to a process that has as many threads already, less what it adds to one with a
single thread: mappings that can be written to, and pages in memory.

    python threads.py ended --count 10000 --server file:///folder --records records.json
"""

import argparse
import json
import sys
import threading
import time
from pathlib import Path

from cpu_burn import MS, Burner
from truth_program import burn


def ended(pyroscope, server: str, count: int) -> dict[str, object]:
    pyroscope.configure(application_name="threads", server_address=server, sample_rate=1000)
    burner = Burner(1)
    main_began, process_began = time.thread_time_ns(), time.process_time_ns()
    unsampled = 0
    for _ in range(10):
        burner.short_threads(MS + MS // 5, count // 10)
        unsampled = max(unsampled, pyroscope.stats()["threads_unsampled"])
    burner.burnt_ns += time.thread_time_ns() - main_began
    process_ns = time.process_time_ns() - process_began
    own_ns = pyroscope.stats()["own_cpu_ns"]
    flushed = pyroscope.flush(30)
    stats = pyroscope.stats()
    return {
        "threads": count,
        "burnt_ns": burner.burnt_ns,
        "process_ns": process_ns,
        "own_ns": own_ns,
        "unsampled": unsampled,
        "flushed": flushed,
        "stats": stats,
    }


class Waiting:
    """Threads that wait, and burn when they are told to."""

    def __init__(self, count: int) -> None:
        self._end = threading.Event()
        alive = threading.Barrier(count + 1)

        def body() -> None:
            alive.wait()
            self._end.wait()
            # So that each has had an expiry of its timer before it ends.
            burn(MS)

        # Python's own stack grows on the heap; 256 KiB of C stack are plenty.
        size = threading.stack_size(256 * 1024)
        self.threads = [threading.Thread(target=body) for _ in range(count)]
        for thread in self.threads:
            thread.start()
        threading.stack_size(size)
        alive.wait()

    def end(self) -> None:
        self._end.set()
        for thread in self.threads:
            thread.join()


def memory() -> dict[str, int]:
    """Bytes of the process: mapped to be written to, and in memory."""
    mapped = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access, *_ = line.split()
        if access == "rw-p":
            start, end = (int(address, 16) for address in span.split("-"))
            mapped += end - start
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"mapped": mapped, "resident": pages * 4096}


def growth(pyroscope, server: str) -> dict[str, int]:
    """Bytes that `configure` adds until every thread has its timer."""
    before, threads = memory(), threading.active_count()
    pyroscope.configure(application_name="threads", server_address=server, sample_rate=1000)
    deadline = time.monotonic() + 30
    while pyroscope.stats()["threads"] < threads and time.monotonic() < deadline:
        burn(10 * MS)
    after = memory()
    return {name: after[name] - before[name] for name in before}


def alive(pyroscope, server: str, count: int, seconds: float) -> dict[str, object]:
    record: dict[str, object] = {"threads": count, **memory_of_rings(pyroscope, server, count)}
    pyroscope.flush(30)
    before, process_before = pyroscope.stats(), time.process_time_ns()
    waiting = Waiting(count)
    stats = pyroscope.stats()
    record |= {"with_timer": stats["threads"], "unsampled": stats["threads_unsampled"]}
    own, began = stats["own_cpu_ns"], time.monotonic_ns()
    # While it burns, the profiler looks for new threads and reads the rings ten times a second.
    burn(round(seconds * 1e9))
    record["own_share"] = (pyroscope.stats()["own_cpu_ns"] - own) / (time.monotonic_ns() - began)
    waiting.end()
    pyroscope.flush(30)
    process_after, after = time.process_time_ns(), pyroscope.stats()
    record["process_ns"] = process_after - process_before - (after["own_cpu_ns"] - before["own_cpu_ns"])
    record |= {unit: after["taken"][unit] - before["taken"][unit] for unit in ("samples", "weight")}
    record["dropped"] = after["dropped_ring"]["samples"]
    return record


def memory_of_rings(pyroscope, server: str, count: int) -> dict[str, int]:
    """By threads that were there before the profiler, so that nothing but the profiler is new. It runs on."""
    # What is mapped once for all profilers of a process belongs to neither.
    growth(pyroscope, server)
    pyroscope.shutdown()
    alone = growth(pyroscope, server)
    pyroscope.shutdown()
    waiting = Waiting(count)
    grown = growth(pyroscope, server)
    waiting.end()
    return {name: grown[name] - alone[name] for name in grown}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("ended", "alive"))
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=10, help="of CPU time to burn while the threads are alive")
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args(arguments)

    import pyroscope

    if options.kind == "ended":
        record = ended(pyroscope, options.server, options.count)
    else:
        record = alive(pyroscope, options.server, options.count, options.seconds)
    pyroscope.shutdown()
    options.records.write_text(json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1:])
