"""Runs `stress.py` in a process of its own and compares what was sampled with what that program can do.

    python soak.py --seconds 60          a row of the table of `ci/soak python`; ends with code 1 if anything was wrong
"""

import argparse
import collections
import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = map(str, (TESTS / "support" / "python", TESTS / "truth" / "python"))

import children  # noqa: E402
import pprof  # noqa: E402
import stress_calls  # noqa: E402
import truth_judge  # noqa: E402

# Each kind of work must be seen, or nothing was tested. A thread of C alone may be gone before it is found.
KINDS = "inner_generator dive fall inner_step swim_deep set_many compare __init__ short_thread in_inner in_tags"


@dataclass
class Outcome:
    code: int
    """How the program ended; below 0: killed by this signal."""
    output: str
    stats: dict = field(default_factory=dict)
    faults: int = 0
    """Loads by the sampler of what was not mapped. Each was caught."""
    samples: int = 0
    unreadable: int = 0
    """Samples without a stack, as that was just being changed."""
    wrong: collections.Counter[str] = field(default_factory=collections.Counter)
    """Calls that the program does not have, and spans that were not current there."""
    missing: frozenset[str] = frozenset()
    """Work that was not seen."""

    def mistakes(self) -> list[str]:
        """What is not as it must be, in words."""
        mistakes = [f"{count} × {what}" for what, count in self.wrong.most_common(20)]
        if self.code != 0:
            mistakes.append(f"exit code {self.code}: {self.output[-2000:]}")
        elif self.missing:
            mistakes.append(f"never seen: {', '.join(sorted(self.missing))}")
        # 3.11 and 3.12 publish frames before they are written. Later ones unmap a frame before it is left, where generators are made.
        publishes_early = sys.version_info[:2] in ((3, 11), (3, 12))
        if self.unreadable > self.samples // (50 if publishes_early else 100_000):
            mistakes.append(f"{self.unreadable} unreadable stacks")
        if self.faults and not publishes_early:
            mistakes.append(f"{self.faults} faults")
        return mistakes


def run(seconds: float, folder: Path, rate: int = 5000, jit: bool = False) -> Outcome:
    records, profiles = folder / "records.json", folder / "profiles"
    arguments = ("--seconds", str(seconds), "--rate", str(rate), "--server", profiles.as_uri(), "--records", records)
    ended = children.run(
        Path(__file__).with_name("stress.py"),
        *arguments,
        environment={"PYTHON_JIT": "1" if jit else "0"},
        timeout=seconds * 3 + 240,
    )
    outcome = Outcome(ended.returncode, ended.stdout + ended.stderr)
    if outcome.code == 0:
        record = json.loads(records.read_text())
        outcome.stats, outcome.faults = record["stats"], record["faults"]
        judge(pprof.read_folder(profiles), outcome)
    return outcome


def judge(profiles: Iterable[pprof.Profile], outcome: Outcome) -> None:
    seen: set[str] = set()
    for profile in profiles:
        for sample in profile.samples:
            count = max(1, round(profile.weight(sample) / profile.period))
            outcome.samples += count
            if sample.names == ["(unreadable stack)"]:
                outcome.unreadable += count
            # Nothing is known of what is below the mark.
            stack = sample.stack[:-1] if sample.names[-1:] == [truth_judge.SWITCHING] else sample.stack
            names = [last_name(frame) if is_own(frame) else "" for frame in stack]
            seen.update(names)
            for callee, caller in zip(names, names[1:]):
                if callee and not stress_calls.is_allowed(callee, caller):
                    outcome.wrong[f"{callee} called by {caller or 'another file'}"] += count
            for mistake in wrong_spans(names, sample.labels.get("span_name")):
                outcome.wrong[mistake] += count
    kinds = {*KINDS.split(), *(["in_subinterpreter"] if stress_calls.HAS_OWN_STACK else [])}
    outcome.missing = frozenset(kinds - seen)


def wrong_spans(names: list[str], span: str | None) -> Iterable[str]:
    for name in names:
        if name in stress_calls.SPANS:
            if span not in stress_calls.SPANS[name]:
                yield f"{name} in the span {span}"
            return
    if span is not None and any(names) and not stress_calls.EDGES.intersection(names):
        yield f"{next(filter(None, names))} in the span {span}"


def is_own(frame: pprof.Frame) -> bool:
    if frame.file in stress_calls.STRING_FILES:
        return last_name(frame) in ("in_subinterpreter", "<module>")
    return frame.file.endswith("stress_work.py") or frame.file == stress_calls.MADE_FILE


def last_name(frame: pprof.Frame) -> str:
    return frame.function.rpartition(".")[2]


def has_jit() -> bool:
    return hasattr(sys, "_jit") and sys._jit.is_available()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=int, default=5000)
    options = parser.parse_args()
    failed = False
    for jit in (False, True) if has_jit() else (False,):
        with tempfile.TemporaryDirectory() as folder:
            outcome = run(options.seconds, Path(folder), options.rate, jit)
        version = ".".join(map(str, sys.version_info[:3])) + (" JIT" if jit else "")
        wrong = sum(outcome.wrong.values())
        print(f"{version:<12}{outcome.samples:>10}{wrong:>8}{outcome.unreadable:>12}{outcome.faults:>8}{children.shell_code(outcome.code):>6}")
        for mistake in outcome.mistakes():
            failed = True
            print(f"    {mistake}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
