"""The judge of profiles whose program (`truth_program.py`) knows which span each function ran in.

Only what a stack shows is held against a sample: the function nearest to the leaf that tells a span must be of the
span that the label names. Of each kind of function there is one rule, and none has a tolerance:

    truth_17   runs in one span, or outside of all
    edge_18    starts and ends a span around its body: the span before is current or the new one
    await_19   an edge whose body is awaited
    step_20    does one thing that may change what is current: what was current before is, or what is after

A coroutine that is resumed runs through the coroutines around it, down to the one that waits, while what is current is
already what that one left. So in an edge that awaits its body a span inside this edge's may be current too, as long as
nothing but the program's own coroutines is nearer to the leaf.
"""

import os.path
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support" / "python"))

import pprof  # noqa: E402

TRUTH, EDGE, AWAIT, STEP = "truth_", "edge_", "await_", "step_"
#: A frame that the profiler could not name: it may be one that tells, so those around it do not.
UNKNOWN = "(unknown)"
#: The outermost frame of a stack that a greenlet is leaving, whose span may be the next one's: it says so itself.
SWITCHING = "(switching stacks)"


@dataclass
class Outcome:
    """Samples of a row by what became of them; `samples` is their sum. A sample is a period's worth of time."""

    samples: int = 0
    right: int = 0
    edge: int = 0
    """While what is current changes, with the span from before or after."""
    missing: int = 0
    """Inside a span, without an id."""
    wrong: int = 0
    """Inside a span or at its edge, with another one's id."""
    leaked: int = 0
    """Outside of spans, with an id."""
    untold: int = 0
    """Without a function in the stack that tells."""

    @property
    def mistakes(self) -> int:
        return self.missing + self.wrong + self.leaked


def judge(profiles: Iterable[pprof.Profile], expected: dict[str, list[str | None]]) -> Outcome:
    """Compares each sample's span with the one in which the program says that its function ran."""
    outcome = Outcome()
    edges = [allowed for name, allowed in expected.items() if name.startswith((EDGE, AWAIT)) and len(allowed) == 2]
    parents = {own: outer for outer, own in edges}
    for profile in profiles:
        for sample in profile.samples:
            count = max(1, round(profile.weight(sample) / profile.period))
            verdict = verdict_on(sample, expected, parents)
            outcome.samples += count
            setattr(outcome, verdict, getattr(outcome, verdict) + count)
    return outcome


def verdict_on(sample: pprof.Sample, expected: dict[str, list[str | None]], parents: dict[str | None, str | None]) -> str:
    """The field of an `Outcome` that a sample counts in. `parents`: the span that each edge's span began in."""
    names = [last_name(frame) for frame in sample.stack]
    at = next((at for at, name in enumerate(names) if name.startswith((TRUTH, EDGE, AWAIT, STEP, UNKNOWN))), None)
    if at is None or names[at].startswith(UNKNOWN) or names[-1] == SWITCHING:
        return "untold"
    teller, allowed = names[at], expected[names[at]]
    have = sample.labels.get("span_id") or sample.labels.get("profile_id")
    if have in allowed:
        return "right" if teller.startswith(TRUTH) else "edge"
    if have is None:
        return "missing"
    if allowed == [None]:
        return "leaked"
    if teller.startswith(AWAIT) and are_of_the_program(sample.stack[: at + 1]):
        inside = have
        while inside in parents and parents[inside] != inside:
            inside = parents[inside]
            if inside in allowed[1:]:
                return "edge"
    return "wrong"


def are_of_the_program(frames: tuple[pprof.Frame, ...]) -> bool:
    return len({os.path.dirname(frame.file) for frame in frames}) == 1


def last_name(frame: pprof.Frame) -> str:
    return frame.function.rpartition(".")[2]
