"""What `import pyroscope` and `pyroscope.configure(...)` cost a process that starts.

Interpreters that do both and interpreters that do nothing run in turn, each a fresh process without warm-up. Inside, the clocks
stand around the two statements, and memory and threads are read behind them. From outside, the CPU time of the whole process is
compared with the bare interpreter's; the profiler's end at exit is in it. Nothing is assumed to be loaded already.

    warm    the files are in the page cache
    cold    pages of the package's own files were dropped from it before each run; the interpreter and its library stay

    python import_cost.py --rounds 20 --server file:///folder --records records.json
"""

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

STATEMENTS = """
import pyroscope
pyroscope.configure(application_name="import", server_address=sys.argv[1])
"""
PROGRAM = """
import os, sys, time
def read():
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
    return time.perf_counter_ns(), time.process_time_ns(), pages * 4096, len(os.listdir("/proc/self/task"))
before = read()
{statements}
after = read()
print(*(now - then for now, then in zip(after, before)))
"""


def run(statements: str, server: str) -> dict[str, float]:
    """One process; what its clocks showed, and its CPU time as its parent sees it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", PROGRAM.format(statements=statements), server]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    wall, cpu, memory, threads = map(int, out.split())
    return {"wall_ms": wall / 1e6, "cpu_ms": cpu / 1e6, "memory": memory, "threads": threads, "whole_ms": whole * 1e3}


def files_of(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"{package} is not installed")
    return [path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*") if path.is_file()]


def drop_from_cache(files: list[Path]) -> None:
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def measure(rounds: int, server: str, cold: bool) -> dict[str, float]:
    files = files_of("pyroscope")
    os.sync()
    ours, bare = [], []
    for _ in range(rounds):
        if cold:
            drop_from_cache(files)
        ours.append(run(STATEMENTS, server))
        bare.append(run("", server))

    def median(records: list[dict[str, float]], name: str) -> float:
        return statistics.median(record[name] for record in records)

    found = {name: median(ours, name) - median(bare, name) for name in ours[0]}
    found["worst_wall_ms"] = max(record["wall_ms"] for record in ours)
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args(arguments)
    # The first run of all reads the interpreter itself from disk.
    run(STATEMENTS, options.server)
    record = {kind: measure(options.rounds, options.server, kind == "cold") for kind in ("warm", "cold")}
    options.records.write_text(json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1:])
