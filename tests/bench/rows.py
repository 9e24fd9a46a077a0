"""The rows of the table: which program measures them, and when they are within their bound."""

import math
import re
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from run import BENCH, ROOT, TRUTH, Cell, Failed, Row, Run, ask, run_program

import truth  # isort: skip  run.py says where it is
import wheel  # isort: skip

Measure = Callable[[Run], Cell]
MIB = 2**20


@dataclass(frozen=True)
class Planned:
    """A row to fill: by which measurement, for which interpreters, and whether nothing else may run meanwhile."""

    row: Row
    ours: Measure
    peers: Measure | None = None
    everywhere: bool = False
    """On each Python, not only on those where what is timed is timed."""
    once: bool = False
    """One number for all Pythons."""
    alone: bool = True


# Samples and their spans.

#: Runs of Grafana's packages too: their processor knows root spans only.
PEER_TRUTH_ROWS = ("threads", "children-root", "tasks-root", "pool", "outside")
#: Where what is timed is timed, and on the other Pythons, for which there is no time to take as many.
SAMPLES, SAMPLES_ELSEWHERE = 5000, 2500
RATE = 250


def truth_rows(quick: bool, timed_on: list[str]) -> list[Planned]:
    planned = []
    for name, of_truth in truth.ROWS.items():
        measure = truth_of(name, quick, timed_on)
        peers = measure if name in PEER_TRUTH_ROWS else None
        row = Row(f"truth: {of_truth.what}", "0 wrong, untold <= 2 %")
        planned.append(Planned(row, measure, peers, everywhere=True, alone=False))
    return planned


def truth_of(name: str, quick: bool, timed_on: list[str]) -> Measure:
    def measure(run: Run) -> Cell:
        why_not = ask(run.python, f"import truth; print(truth.ROWS[{name!r}].why_not() or '')")
        if why_not:
            return Cell("not here", None, {"skipped": why_not})
        samples = (SAMPLES if run.version in timed_on else SAMPLES_ELSEWHERE) // (10 if quick else 1)
        arguments = (name, "--rate", RATE, "--cpu-seconds", samples / RATE, "--samples", samples)
        record, profiles = run_program(run.python, TRUTH / "truth.py", *arguments)
        outcome = truth.judge(profiles, record["expected"])
        taken = record["stats"]["taken"]["samples"] if "stats" in record else outcome.samples
        told = outcome.samples - outcome.untold
        share = 100 * outcome.mistakes / max(1, told)
        untold = 100 * outcome.untold / max(1, outcome.samples)
        wrong = "0 wrong" if not outcome.mistakes else f"{outcome.mistakes} wrong = {share:.1f} %"
        good = taken >= samples and outcome.mistakes == 0 and untold <= 2
        return Cell(f"{taken}: {wrong}, {untold:.1f} % untold", good, {**asdict(outcome), "taken": taken})

    return measure


CPU_ROWS = {
    "mix": ("all of these, 100 Hz", 100),
    "1ms": ("threads of 1 ms, 1 kHz", 1000),
    "5ms": ("threads of 5 ms, 1 kHz", 1000),
    "20ms": ("threads of 20 ms, 1 kHz", 1000),
    "native": ("zlib, hashlib, 1 kHz", 1000),
}
#: The peer's rate is what its users have: it reads the stacks of a whole process that often.
PEER_CPU_ROWS = ("mix",)


def cpu_rows(quick: bool) -> list[Planned]:
    planned = []
    for name, (what, rate) in CPU_ROWS.items():
        measure = cpu_of(name, rate, quick)
        row = Row(f"CPU seen / burnt: {what}", "0.97-1.03")
        planned.append(Planned(row, measure, measure if name in PEER_CPU_ROWS else None, everywhere=True, alone=False))
    return planned


def cpu_of(kind: str, rate: int, quick: bool) -> Measure:
    def measure(run: Run) -> Cell:
        arguments = (kind, "--rate", rate, "--scale", 0.1 if quick else 1)
        record, profiles = run_program(run.python, TRUTH / "cpu_burn.py", *arguments)
        seen = sum(profile.total() for profile in profiles)
        # The kernel's own sum for the process, of which the profiler's threads are no part.
        ratio = seen / (record["process_ns"] - record.get("own_ns", 0))
        numbers = {"seen_ns": seen, "seen_of_process": ratio, "seen_of_threads": seen / record["burnt_ns"], **record}
        return Cell(f"{ratio:.3f}", is_all(ratio), numbers)

    return measure


def is_all(ratio: float) -> bool:
    return 0.97 <= ratio <= 1.03


def thread_rows(quick: bool) -> list[Planned]:
    ended, alive = (1000, 200) if quick else (10_000, 2000)

    def made_and_ended(run: Run) -> Cell:
        record, profiles = run_program(run.python, BENCH / "threads.py", "ended", "--count", ended)
        taken = record["stats"]["taken"]
        ratio = taken["weight"] / (record["process_ns"] - record["own_ns"])
        # At its end it uploads what came after the count.
        complete = sum(profile.total() for profile in profiles) >= taken["weight"]
        good = taken["samples"] >= ended and record["unsampled"] == 0 and complete and is_all(ratio)
        text = f"{taken['samples']} samples, {record['unsampled']} unsampled, {ratio:.3f} of the CPU"
        return Cell(text, good, {**record, "ratio": ratio})

    def at_once(run: Run) -> Cell:
        record, _ = run_program(run.python, BENCH / "threads.py", "alive", "--count", alive, "--seconds", 2 if quick else 10)
        ratio, mapped = record["weight"] / record["process_ns"], record["mapped"] / MIB
        unsampled = max(record["unsampled"], record["threads"] + 1 - record["with_timer"])
        share = 100 * record["own_share"]
        good = unsampled == 0 and record["samples"] >= alive and is_all(ratio) and mapped <= 64 and share <= 1
        text = f"{unsampled} unsampled, {ratio:.3f} of the CPU, {mapped:.1f} MiB, {share:.2f} % of a core"
        return Cell(text, good, {**record, "ratio": ratio})

    return [
        Planned(Row(f"{ended:,} threads made and ended, 1 kHz", "all sampled, 0.97-1.03"), made_and_ended, alone=False),
        Planned(Row(f"{alive:,} threads alive at once, 1 kHz", "all sampled, rings <= 64 MiB, <= 1 %"), at_once),
    ]


# What it costs.


def sample_rows(quick: bool) -> list[Planned]:
    seconds = 2 if quick else 10

    def timed(mode: str, rate: int, limit_us: float) -> Planned:
        def measure(run: Run) -> Cell:
            record, _ = run_program(run.python, BENCH / "sample_cost.py", mode, "--rate", rate, "--seconds", seconds)
            return cost_cell(record, limit_us)

        return Planned(Row(f"a sample of 57 frames, {rate} Hz, {mode}", f"<= {limit_us} µs"), measure)

    def beside(run: Run) -> Cell:
        record, profiles = run_program(run.python, BENCH / "sample_cost.py", "beside", "--rate", 100, "--seconds", seconds)
        samples = sum(round(profile.weight(sample) / profile.period) for profile in profiles for sample in profile.samples)
        if not samples:
            raise Failed("no samples")
        each = record["beside_ns"] / samples
        return Cell(f"{each / 1000:.1f} µs", None, {**record, "samples": samples, "ns": each})

    own = Planned(Row("the profiler's own threads, a sample", ""), beside, beside)
    return [timed("warm", 250, 2.5), timed("cold", 100, 7), own]


def overhead_rows(quick: bool) -> list[Planned]:
    def measure(run: Run) -> Cell:
        pairs = ("--pairs", 6, "--requests", 80, "--sample-seconds", 1) if quick else ()
        record, _ = run_program(run.python, BENCH / "overhead.py", *pairs)
        by_samples, counted = None, ""
        if "sample" in record:
            seconds = record["cpu_ns"] / 1e9
            by_samples = (record["samples"] * record["sample"]["ns"] + record["own_ns"]) / seconds / 1e7
            each = f"{record['samples'] / seconds:.0f}/s x {record['sample']['ns'] / 1000:.1f} µs"
            counted = f"{each} + own threads = {by_samples:.2f} %"
        return share_cell(record, by_samples, counted)

    return [Planned(Row("CPU time a request: 8 threads x 55 frames, 100 Hz", "<= +1 % over A/A, or not separable"), measure, measure)]


def share_cell(record: dict, counted_percent: float | None, counted: str) -> Cell:
    """What pairs of slices say of a share of CPU time, against their control, and beside it what was counted of the same."""
    over, control = record["pairs"], record["control"]
    text = f"{over['mean']:+.2f} % ({over['low']:+.2f} to {over['high']:+.2f}; A/A {control['mean']:+.2f})"
    # The difference to the control, whose own uncertainty counts too.
    half = math.hypot(over["high"] - over["mean"], control["high"] - control["mean"])
    low, high = (over["mean"] - control["mean"] + bound for bound in (-half, half))
    good = high <= 1
    if low <= 0:
        text += ", not separable"
        good = good or (counted_percent is not None and counted_percent <= 1)
    if counted:
        text += f"; {counted}"
    return Cell(text, good, {**record, "over_control": [low, high], "by_samples_percent": counted_percent})


def span_rows(quick: bool) -> list[Planned]:
    records: dict[Path, dict] = {}

    def of(kind: str, what: str, limit_us: float) -> Planned:
        def measure(run: Run) -> Cell:
            # One run has both.
            if run.python not in records:
                records[run.python], _ = run_program(run.python, BENCH / "span_cost.py", "--seconds", 2 if quick else 15)
            return cost_cell(records[run.python][kind], limit_us, sign="+")

        return Planned(Row(f"span start + end over the SDK, {what}", f"<= +{limit_us} µs"), measure, measure)

    return [of("root", "that gets the attribute", 2.5), of("child", "that gets none", 1.0)]


def cost_cell(record: dict, limit_us: float, sign: str = "", digits: int = 2) -> Cell:
    """A cost with its interval of 95 %, the control, and for a sample how much of it is the signal's delivery alone."""
    us = {name: record[f"{name}_ns" if name != "ns" else "ns"] / 1000 for name in ("ns", "low", "high", "control")}
    text = f"{us['ns']:{sign}.{digits}f} µs ({us['low']:.{digits}f}-{us['high']:.{digits}f}; A/A {us['control']:+.{digits}f}"
    text += f"; delivery {record['delivery_ns'] / 1000:.2f})" if "delivery_ns" in record else ")"
    return Cell(text, us["ns"] <= limit_us, record)


def memory_rows(quick: bool) -> list[Planned]:
    def of(kind: str, spans: int, what: str) -> Planned:
        spans //= 10 if quick else 1

        def measure(run: Run) -> Cell:
            program = (run.python, BENCH / "memory.py", kind, "--spans", spans)
            (bare, _), (ours, _) = run_program(*program, "--bare"), run_program(*program)
            over = {mark: ours[mark] - bare[mark] for mark in ("tenth", "half", "all")}
            # By what it grows while as many spans again are made.
            growth = over["all"] - over["half"]
            text = f"{over['all']:+.1f} MiB (at half {over['half']:+.1f}), {ours['samples']:.0f} samples"
            return Cell(text, over["all"] <= 20 and growth <= 2, {"bare": bare, "ours": ours})

        return Planned(Row(f"memory over the SDK after {spans:,} spans {what}", "<= +20 MiB, flat"), measure, alone=False)

    return [of("names", 1_000_000, "with distinct names"), of("foreign", 100_000, "ended on another thread")]


def import_rows(quick: bool) -> list[Planned]:
    records: dict[Path, dict] = {}

    def of(kind: str, what: str, bound: str) -> Planned:
        def measure(run: Run) -> Cell:
            if run.python not in records:
                records[run.python], _ = run_program(run.python, BENCH / "import_cost.py", "--rounds", 4 if quick else 25)
            found = records[run.python][kind]
            memory = found["memory"] / MIB
            text = f"{found['wall_ms']:.1f} ms ({found['cpu_ms']:.1f} of CPU), {memory:+.1f} MiB, {found['threads']:.0f} threads"
            good = found["wall_ms"] <= 15 and memory <= 6 and found["threads"] == 2 if bound else None
            return Cell(text, good, found)

        return Planned(Row(f"import + configure, {what}", bound), measure, measure)

    cold = of("cold", "the package's files not in memory", "")
    return [of("warm", "a fresh interpreter", "<= 15 ms, <= +6 MiB, 2 threads"), cold]


def encode_rows() -> list[Planned]:
    def measure(run: Run) -> Cell:
        command = ["cargo", "test", "--release", "--locked", "-p", "spanprof-core", "--lib", "encode_cost"]
        done = subprocess.run(
            [*command, "--", "--ignored", "--nocapture"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        found = re.search(r"encode_10000x40_ms: ([0-9.]+)", done.stdout + done.stderr)
        if done.returncode != 0 or not found:
            raise Failed(f"encode_cost ended with {done.returncode}: {(done.stdout + done.stderr)[-1000:]}")
        ms = float(found[1])
        return Cell(f"{ms:.1f} ms", ms <= 20, {"ms": ms})

    return [Planned(Row("10,000 samples x 40 frames, encoded, gzip", "<= 20 ms"), measure, once=True)]


def wheel_rows(path: Path) -> list[Planned]:
    def measure(run: Run) -> Cell:
        try:
            found = wheel.facts(path)
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise Failed(f"{path.name}: {type(error).__name__}: {error}") from error
        text = f"{found.bytes / 1e6:.2f} MB, {found.allowed_on}, abi3 from {found.abi3}, {len(found.files)} files"
        if found.wrong:
            text += f", {len(found.wrong)} things wrong: {'; '.join(found.wrong)}"
        return Cell(text, not found.wrong, asdict(found))

    row = Row("the wheel", "<= 4 MB, manylinux_2_17, abi3")
    return [Planned(row, measure, once=True, alone=False)]
