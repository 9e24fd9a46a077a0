"""The rows on where the time of spans goes: how much of it is found, and what that costs."""

import collections
import concurrent.futures
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from rows import Planned, cost_cell, is_all, share_cell
from run import BENCH, TRUTH, Cell, Row, Run, ask, run_program

import flows  # isort: skip
import pprof  # isort: skip  run.py says where it is


def of(quick: bool) -> list[Planned]:
    """In the order of the table."""
    return [*found_rows(quick), *flow_rows(quick), *cost_rows(quick)]


def found_rows(quick: bool) -> list[Planned]:
    def known_waits(run: Run) -> Cell:
        record, samples = run_waits(run, 2 if quick else 10)
        waits = [(span, weight) for span, state, _, weight in samples if state not in ("cpu", "gc", "run_queue")]
        # Who wants the GIL also stands in the queue for a processor, with the others that do.
        ways = {way: away for way, away in record["off_cpu"].items() if record["states"][way] != "gil"}
        seen = {way: sum(weight for span, weight in waits if span == way) / away for way, away in ways.items()}
        # What a way needs beside the wait that it is of takes little: to start the thread that ends it.
        of_kind = [(span, weight) for span, state, _, weight in samples if state == record["states"][span]]
        kinds = {way: sum(weight for span, weight in of_kind if span == way) / away for way, away in ways.items()}
        worst, best, least = min(seen, key=seen.get), max(seen.values()), min(kinds.values())
        text = f"{seen[worst]:.3f} ({worst}) to {best:.3f} of {len(seen)} ways, of their kind at least {least:.2f}"
        return Cell(text, is_all(seen[worst]) and is_all(best) and least >= 0.9, seen)

    def closure(run: Run) -> Cell:
        record, profiles = run_program(run.python, BENCH / "closure.py", "--seconds", 2 if quick else 60, kind="wall")
        found = own_ns(profiles)
        share, delayed = found.total() / record["wall_ns"], record["delay_ns"] / record["wall_ns"]
        states = {state: ns for (_, state), ns in found.items()}
        return Cell(f"{share:.3f} of wall, {delayed:.3f} of it queued", is_all(share), {**record, "found_ns": states})

    def short_waits(run: Run) -> Cell:
        arguments = ("--seconds", 1 if quick else 30)
        ran = run_several(run, "wait_kinds.py", *arguments, processes=2 if quick else 16)
        found = [(record["measured_ns"], own_ns(profiles)) for record, profiles in ran]
        kinds = tuple(found[0][0])
        alone = {kind: Share.of([(of[kind, kind], ns[kind]) for ns, of in found]) for kind in kinds}
        # Who comes back from another wait has the GIL when the call returns.
        shares = {
            kind: Share.of([(sum(of[kind, state] for state in {kind, "gil"}), ns[kind]) for ns, of in found]) for kind in kinds
        }
        samples = sum(record["samples"] for record, _ in ran)
        text = f"{', '.join(f'{kind} {share}' for kind, share in shares.items())}; {samples} samples"
        good = all(is_all(share.ratio) for share in shares.values()) and samples >= 3000
        numbers = {name: {kind: vars(of[kind]) for kind in kinds} for name, of in (("kinds", shares), ("without_gil", alone))}
        return Cell(text, good, {"samples": samples, **numbers})

    short = "waits of 0.1 to 5 ms and the GIL after them: profile / measured, by kind"
    return [
        Planned(Row("waits: seen of known ones, by way", "0.97-1.03"), known_waits, everywhere=True),
        Planned(Row("waits + CPU time + run queue of spans of four threads", "0.97-1.03"), closure),
        Planned(Row(short, "0.97-1.03, >= 3,000 samples"), short_waits),
    ]


def run_waits(run: Run, times: int) -> tuple[dict, list[tuple[str, str, list[str], int]]]:
    record, profiles = run_program(run.python, TRUTH / "waits.py", "--times", times, kind="wall")
    samples = [
        (sample.labels["span_name"], sample.labels["state"], sample.names, profile.weight(sample))
        for profile in profiles
        for sample in profile.samples
    ]
    return record, samples


#: By number of flows: processes, the seconds that a flow lasts and those of an await. Some sixty suspensions a second become samples,
#: so where there are no more each is one; else chance is as much as of so many samples, of which each process makes its own.
SIZES = {10: (1, 12, 0.25), 100: (1, 25, 2.5), 1000: (3, 30, 12), 10_000: (12, 30, 12)}


def flow_rows(quick: bool) -> list[Planned]:
    # By interpreter and loop: how many samples were looked at, and what was wrong with some.
    judged: dict[tuple[Path, str], tuple[int, list[str]]] = {}

    def is_left_out(run: Run, loop: str) -> bool:
        return ask(run.python, f"from importlib import util; print(util.find_spec({loop!r}))") == "None"

    def closure(loop: str) -> Planned:
        def cell(run: Run) -> Cell:
            if is_left_out(run, loop):
                return Cell("left out: not installed")
            measured, judged[run.python, loop] = measure_flows(run, loop, quick)
            return measured

        what = f"awaited + ready + CPU time + waits of spans that await: {loop}, by flows at once"
        return Planned(Row(what, "0.97-1.03"), cell)

    def chains(run: Run) -> Cell:
        of_loops = {loop: judged[run.python, loop] for loop in flows.LOOPS if (run.python, loop) in judged}
        samples = sum(number for number, _ in of_loops.values())
        wrong = [mistake for _, mistakes in of_loops.values() for mistake in mistakes]
        text = f"{', '.join(f'{loop} {number}' for loop, (number, _) in of_loops.items())}: {len(wrong)} wrong"
        return Cell(text, samples >= 5000 and not wrong, {"samples": samples, "wrong": wrong[:20]})

    what = "chains of awaits, from the leaf to the handler"
    return [*map(closure, flows.LOOPS), Planned(Row(what, "0 wrong of >= 5,000 samples"), chains)]


def measure_flows(run: Run, loop: str, quick: bool) -> tuple[Cell, tuple[int, list[str]]]:
    """The time of spans, and how many awaits were looked at and what was wrong with some. All sizes at once, which leave a processor idle."""
    with concurrent.futures.ThreadPoolExecutor(len(SIZES)) as pool:
        running = {}
        for number, (processes, seconds, mean) in SIZES.items():
            arguments = (loop, "--flows", number, "--seconds", min(seconds, 2) if quick else seconds)
            arguments += ("--mean", min(mean, 0.25) if quick else mean)
            running[number] = pool.submit(run_several, run, "flows.py", *arguments, processes=1 if quick else processes)
        ran = {number: future.result() for number, future in running.items()}
    shares = {
        number: Share.of([(own_ns(profiles).total(), record["wall_ns"]) for record, profiles in of])
        for number, of in ran.items()
    }
    samples, wrong = 0, []
    for of in ran.values():
        for _, profiles in of:
            for sample in (sample for profile in profiles for sample in profile.samples if is_await(sample)):
                samples += 1
                wrong += mistakes(sample)
    lost = {number: sum(record["lost_ns"] for record, _ in of) / sum(record["wall_ns"] for record, _ in of) for number, of in ran.items()}
    texts = [f"{number:,}: {share}{lost_text(lost[number])}" for number, share in shares.items()]
    numbers = {str(number): {**vars(share), "lost": lost[number]} for number, share in shares.items()}
    return Cell(", ".join(texts), all(is_all(share.ratio) for share in shares.values()), numbers), (samples, wrong)


def lost_text(lost: float) -> str:
    """What the profiler says that it had no room for, if that can be seen beside the share that was found."""
    return f" ({lost:.3f} lost)" if lost >= 0.0005 else ""


def is_await(sample: pprof.Sample) -> bool:
    return sample.labels["state"] == "await" and "flow" not in sample.labels


def mistakes(sample: pprof.Sample) -> list[str]:
    """What is wrong with the stack of an await of `flows.py`, if anything: it has the functions of the program, of one chain and all."""
    program = Path(flows.__file__).name
    names = [(frame.function.rpartition(".")[2], Path(frame.file).name == program) for frame in sample.stack]
    own = [place for place, (_, is_own) in enumerate(names) if is_own]
    handler = next((place for place, name in enumerate(names) if name == ("handle", True)), 0)
    found = [name for name, _ in names[own[0] if own else 0 : handler + 1]]
    depth = int(sample.labels["span_name"].removeprefix("depth "))
    if found[:1] and found[0] in flows.WAITS and found == flows.chain(depth, found[0]) and names[0][0].startswith("(await"):
        return []
    return [f"{sample.labels['span_name']}: {' < '.join(sample.names)}"]


def own_ns(profiles: list[pprof.Profile]) -> collections.Counter[tuple[str, str]]:
    """Nanoseconds by span name and state of what spans' own flows did."""
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    for profile in profiles:
        for sample in profile.samples:
            if "flow" not in sample.labels:
                found[sample.labels["span_name"], sample.labels["state"]] += profile.weight(sample)
    return found


@dataclass(frozen=True)
class Share:
    """What is found of what there was, in several processes, and the standard error by which these differ, where they are many."""

    ratio: float
    error: float | None

    @classmethod
    def of(cls, parts: list[tuple[float, float]]) -> "Share":
        found, there = (sum(side) for side in zip(*parts))
        error = statistics.stdev(part / of for part, of in parts) / math.sqrt(len(parts)) if len(parts) > 2 else None
        return cls(found / there, error)

    def __str__(self) -> str:
        return f"{self.ratio:.3f}" + (f" ± {self.error:.3f}" if self.error is not None else "")


def run_several(run: Run, script: str, *arguments: object, processes: int) -> list[tuple[dict, list[pprof.Profile]]]:
    """So many processes of a program at once: each has its own number of samples a second."""
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        ran = [pool.submit(run_program, run.python, BENCH / script, *arguments, kind="wall") for _ in range(processes)]
        return [future.result() for future in ran]


def cost_rows(quick: bool) -> list[Planned]:
    records: dict[Path, dict] = {}

    def cost(kind: str, what: str, limit_us: float) -> Planned:
        def measure(run: Run) -> Cell:
            # One run has all.
            if run.python not in records:
                records[run.python], _ = run_program(run.python, BENCH / "wait_cost.py", "--seconds", 2 if quick else 20)
            return cost_cell(records[run.python][kind], limit_us, sign="+", digits=3)

        return Planned(Row(f"waits measured: {what}", f"<= +{limit_us} µs"), measure)

    def service(kind: str, what: str) -> Planned:
        def measure(run: Run) -> Cell:
            pairs = ("--pairs", 6, "--requests", 80) if quick else ()
            record, _ = run_program(run.python, BENCH / "web_cost.py", kind, *pairs)
            # By what the profiler's own threads did more, and the samples of waits took.
            own = record["on_own_ns"] / record["on_cpu_ns"] - record["off_own_ns"] / record["off_cpu_ns"]
            samples = (record["on_samples"] - record["off_samples"]) / (record["on_wall_ns"] / 1e9)
            return share_cell(record, None, f"{samples:.0f} samples/s more, own threads {own * 100:+.2f} %")

        return Planned(Row(f"CPU time a request, wall_time on over off: {what}", "<= +1 % over A/A"), measure)

    return [
        cost("could", "a call that could wait", 0.06),
        cost("cannot", "a call that cannot", 0.005),
        cost("mutex", "a mutex that is free, lock and unlock", 0.008),
        cost("python", "a call of socket.send or recv", 0.08),
        service("threads", "8 threads"),
        service("asyncio", "8 tasks"),
    ]
