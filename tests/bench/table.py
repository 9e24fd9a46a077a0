"""Runs the measurements of `ci/bench python` and prints their table.

Every program runs in a process of its own and uploads to a receiver in this one, ours and Grafana's alike. What is
judged by CPU time alone runs two at a time; what is timed runs alone.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "python"
BENCH = ROOT / "tests" / "bench"
sys.path.insert(0, str(TESTS))

import pprof  # noqa: E402
import receiver  # noqa: E402
import truth  # noqa: E402

# The rows of the truth that are run with Grafana's packages too: their processor knows root spans only.
PEER_TRUTH_ROWS = ("threads", "children-root", "tasks-root", "pool", "outside")
NEEDED_SAMPLES = 5000
CPU_ROWS = {
    "mix": ("CPU seen / burnt: all of these, 100 Hz", 100),
    "1ms": ("CPU seen / burnt: threads of 1 ms, 1 kHz", 1000),
    "5ms": ("CPU seen / burnt: threads of 5 ms, 1 kHz", 1000),
    "20ms": ("CPU seen / burnt: threads of 20 ms, 1 kHz", 1000),
    "native": ("CPU seen / burnt: zlib, hashlib, 1 kHz", 1000),
}
# The peer's rate is what its users have: it reads the stacks of a whole process that often.
PEER_CPU_ROWS = {"mix": 100}

began = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - began:3.0f} s] {text}", flush=True)


@dataclass
class Cell:
    """One measurement: what the table shows, whether it is within the bound, and all numbers."""

    text: str
    good: bool | None = None
    numbers: dict = field(default_factory=dict)


@dataclass
class Row:
    what: str
    bound: str
    ours: dict[str, Cell] = field(default_factory=dict)
    peers: dict[str, Cell] = field(default_factory=dict)

    def verdict(self) -> str:
        judged = [cell.good for cell in self.ours.values() if cell.good is not None]
        return "" if not judged else "pass" if all(judged) else "MISS"


@dataclass(frozen=True)
class Run:
    """One measurement to make."""

    row: Row
    python: Path
    version: str
    is_peer: bool
    measure: Callable[["Run"], Cell]

    def make(self) -> None:
        say(f"{self.row.what}: {'Grafana, ' if self.is_peer else ''}Python {self.version}")
        try:
            cell = self.measure(self)
        except Failed as failure:
            cell = Cell("failed", False, {"failed": str(failure)})
        (self.row.peers if self.is_peer else self.row.ours)[self.version] = cell


class Failed(Exception):
    """A measurement that could not be made."""


def run_program(python: Path, script: Path, *arguments: object) -> tuple[dict, list[pprof.Profile]]:
    """Runs a program, and returns what it recorded and the CPU profiles that it uploaded."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYROSCOPE_", "OTEL_"))}
    environment["PYTHONPATH"] = str(TESTS)
    with tempfile.TemporaryDirectory() as folder, receiver.Receiver() as server:
        records = Path(folder, "records.json")
        command = [python, script, *arguments, "--server", server.url, "--records", records]
        try:
            done = subprocess.run(
                list(map(str, command)), env=environment, capture_output=True, text=True, timeout=300, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{script.name} {arguments} took more than {error.timeout} s") from error
        if done.returncode != 0:
            raise Failed(f"{script.name} {arguments} ended with {done.returncode}: {done.stderr[-2000:]}")
        if server.errors:
            raise Failed(f"{script.name} {arguments} uploaded what cannot be read: {server.errors[0]}")
        return json.loads(records.read_text()), server.profiles()


def truth_of(row: str, quick: bool) -> Callable[[Run], Cell]:
    samples = NEEDED_SAMPLES // (10 if quick else 1)

    def measure(run: Run) -> Cell:
        if why_not := why_no_row(run.python, row):
            say(f"skipped: {run.row.what}, Python {run.version}: {why_not}")
            return Cell("not here", None, {"skipped": why_not})
        arguments = (row, "--rate", 250, "--cpu-seconds", 2 if quick else 20, "--samples", samples)
        record, profiles = run_program(run.python, TESTS / "truth.py", *arguments)
        outcome = truth.judge(profiles, record["expected"])
        numbers = asdict(outcome)
        taken = record["stats"]["taken"]["samples"] if "stats" in record else outcome.samples
        numbers["taken"] = taken
        told = outcome.samples - outcome.untold
        share = 100 * outcome.mistakes / max(1, told)
        untold = 100 * outcome.untold / max(1, outcome.samples)
        wrong = "0 wrong" if not outcome.mistakes else f"{outcome.mistakes} wrong = {share:.1f} %"
        text = f"{taken}: {wrong}, {untold:.1f} % untold"
        return Cell(text, taken >= samples and outcome.mistakes == 0 and untold <= 2, numbers)

    return measure


def why_no_row(python: Path, row: str) -> str:
    """Why this interpreter has no such context; empty if it has."""
    ask = f"import truth; print(truth.ROWS[{row!r}].why_not() or '')"
    done = subprocess.run([python, "-c", ask], cwd=TESTS, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"truth.py cannot be imported: {done.stderr[-1000:]}")
    return done.stdout.strip()


def cpu_of(kind: str, rate: int, quick: bool) -> Callable[[Run], Cell]:
    def measure(run: Run) -> Cell:
        arguments = (kind, "--rate", rate, "--scale", 0.1 if quick else 1)
        record, profiles = run_program(run.python, TESTS / "cpu_burn.py", *arguments)
        seen = sum(profile.total() for profile in profiles)
        # The kernel's own sum for the process, of which the profiler's threads are no part.
        ratio = seen / (record["process_ns"] - record.get("own_ns", 0))
        numbers = {"seen_ns": seen, "seen_of_process": ratio, "seen_of_threads": seen / record["burnt_ns"], **record}
        return Cell(f"{ratio:.3f}", 0.97 <= ratio <= 1.03, numbers)

    return measure


def sample_of(mode: str, rate: int, limit_us: float, quick: bool) -> Callable[[Run], Cell]:
    def measure(run: Run) -> Cell:
        arguments = (mode, "--rate", rate, "--seconds", 2 if quick else 10)
        record, _ = run_program(run.python, BENCH / "sample_cost.py", *arguments)
        return cost_cell(record, limit_us)

    return measure


def beside_of(quick: bool) -> Callable[[Run], Cell]:
    def measure(run: Run) -> Cell:
        arguments = ("beside", "--rate", 100, "--seconds", 2 if quick else 10)
        record, profiles = run_program(run.python, BENCH / "sample_cost.py", *arguments)
        samples = sum(round(profile.weight(sample) / profile.period) for profile in profiles for sample in profile.samples)
        if not samples:
            raise Failed("no samples")
        each = record["beside_ns"] / samples
        return Cell(f"{each / 1000:.1f} µs", None, {**record, "samples": samples, "ns": each})

    return measure


def encode(run: Run) -> Cell:
    """The encoder knows nothing of Python: one number for all."""
    command = ["cargo", "test", "--release", "--locked", "-p", "spanprof-core", "--lib", "encode_cost"]
    done = subprocess.run(
        [*command, "--", "--ignored", "--nocapture"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = re.search(r"encode_10000x40_ms: ([0-9.]+)", done.stdout + done.stderr)
    if done.returncode != 0 or not found:
        raise Failed(f"encode_cost ended with {done.returncode}: {(done.stdout + done.stderr)[-1000:]}")
    ms = float(found[1])
    return Cell(f"{ms:.1f} ms", ms <= 20, {"ms": ms})


class SpanCost:
    """Two rows of one run: roots and children."""

    def __init__(self, quick: bool) -> None:
        self.seconds = 2 if quick else 15
        self.records: dict[Path, dict] = {}

    def of(self, kind: str, limit_us: float) -> Callable[[Run], Cell]:
        def measure(run: Run) -> Cell:
            if run.python not in self.records:
                arguments = ("--seconds", self.seconds)
                self.records[run.python], _ = run_program(run.python, BENCH / "span_cost.py", *arguments)
            return cost_cell(self.records[run.python][kind], limit_us, sign="+")

        return measure


def cost_cell(record: dict, limit_us: float, sign: str = "") -> Cell:
    """A cost with its interval of 95 %, the control, and for a sample how much of it is the signal's delivery alone."""
    us = {name: record[f"{name}_ns" if name != "ns" else "ns"] / 1000 for name in ("ns", "low", "high", "control")}
    text = f"{us['ns']:{sign}.2f} µs ({us['low']:.2f}-{us['high']:.2f}; A/A {us['control']:+.2f}"
    text += f"; delivery {record['delivery_ns'] / 1000:.2f})" if "delivery_ns" in record else ")"
    return Cell(text, us["ns"] <= limit_us, record)


def plan(options: argparse.Namespace) -> tuple[list[Row], list[Run], list[Run]]:
    """All rows, the runs that may be made two at a time, and those that must be alone."""
    rows, together, alone = [], [], []
    wanted = options.rows.split(",")

    def add(row: Row, to: list[Run], ours: Callable[[Run], Cell], peers: Callable[[Run], Cell] | None = None) -> None:
        rows.append(row)
        for version, python in options.ours:
            to.append(Run(row, python, version, False, ours))
        for version, python in options.peers if peers else ():
            to.append(Run(row, python, version, True, peers))

    if "truth" in wanted:
        for name, of_truth in truth.ROWS.items():
            measure = truth_of(name, options.quick)
            peers = measure if name in PEER_TRUTH_ROWS else None
            add(Row(f"truth: {of_truth.what}", "0 wrong, untold <= 2 %"), together, measure, peers)
    if "cpu" in wanted:
        for name, (what, rate) in CPU_ROWS.items():
            peers = cpu_of(name, PEER_CPU_ROWS[name], options.quick) if name in PEER_CPU_ROWS else None
            add(Row(what, "0.97-1.03"), together, cpu_of(name, rate, options.quick), peers)
    if "sample" in wanted:
        add(Row("a sample of 57 frames, 250 Hz, warm", "<= 2.5 µs"), alone, sample_of("warm", 250, 2.5, options.quick))
        add(Row("a sample of 57 frames, 100 Hz, cold", "<= 7 µs"), alone, sample_of("cold", 100, 7, options.quick))
        beside = beside_of(options.quick)
        add(Row("the profiler's own threads, a sample", ""), alone, beside, beside)
    if "encode" in wanted:
        row = Row("10,000 samples x 40 frames, encoded, gzip", "<= 20 ms")
        rows.append(row)
        alone.append(Run(row, Path(), "any", False, encode))
    if "span" in wanted:
        spans = SpanCost(options.quick)
        for kind, what, limit in (("root", "that gets the attribute", 2.5), ("child", "that gets none", 1.0)):
            measure = spans.of(kind, limit)
            add(Row(f"span start + end over the SDK, {what}", f"<= +{limit} µs"), alone, measure, measure)
    return rows, together, alone


def table(rows: list[Row], versions: list[str], with_peers: bool) -> str:
    """All rows in columns."""
    head = ["what", "bound", *(f"Python {version}" for version in versions)]
    head += [f"Grafana's, {version}" for version in versions] if with_peers else []
    lines = [[*head, ""]]
    for row in rows:
        ours = [cell_of(row.ours, version) for version in versions]
        peers = [cell_of(row.peers, version) for version in versions] if with_peers else []
        lines.append([row.what, row.bound, *ours, *peers, row.verdict()])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def cell_of(cells: dict[str, Cell], version: str) -> str:
    cell = cells.get(version) or cells.get("any")
    return cell.text if cell else "-"


def interpreter(text: str) -> tuple[str, Path]:
    version, _, path = text.partition("=")
    return version, Path(path)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ours", type=interpreter, action="append", default=[])
    parser.add_argument("--peers", type=interpreter, action="append", default=[])
    parser.add_argument("--rows", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--target", type=Path, required=True)
    options = parser.parse_args()

    load_before = os.getloadavg()
    rows, together, alone = plan(options)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run.make) for run in together]:
            done.result()
    load_between = os.getloadavg()
    for run in alone:
        run.make()
    load_after = os.getloadavg()

    loads = ", ".join(f"{load[0]:.1f}" for load in (load_before, load_between, load_after))
    text = table(rows, [version for version, _ in options.ours], bool(options.peers))
    text += f"\n\n1-minute load average before, between what runs two at a time and what runs alone, after: {loads}\n"
    if options.quick:
        text += "--quick: too few samples to judge by\n"
    (options.target / "python.txt").write_text(text)
    result = {"load_average": [load_before, load_between, load_after], "quick": options.quick}
    result["rows"] = [{**asdict(row), "verdict": row.verdict()} for row in rows]
    (options.target / "python.json").write_text(json.dumps(result, indent=1))
    print(f"\n{text}")
    cells = [(row.what, cell) for row in rows for cell in (*row.ours.values(), *row.peers.values())]
    failures = [(what, cell.numbers["failed"]) for what, cell in cells if "failed" in cell.numbers]
    for what, failure in failures:
        print(f"could not be measured: {what}: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
