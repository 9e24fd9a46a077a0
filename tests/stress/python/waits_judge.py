"""Compares samples of waits with what the program of waits can do, as `waits_calls.py` says it."""

import collections
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pprof
from waits_calls import ANY, BESIDE, FILES, FUNCTIONS, HANDLED, HANDLER, HANDLERS, INHERITED, LOOP, LOOP_SPAN, is_among

WALL = [("wait_count", "count"), ("wall", "nanoseconds")]
GIL = ("gil", "(waits for the GIL)")
#: Whoever has files closes and looks for some, and that rarely waits.
OF_NAMES = "close fclose fopen64 stat64 lstat64 fstatat64 __xstat64 __lxstat64 __fxstatat64 statx access"
ANYWHERE = {GIL, *(("io", name) for name in OF_NAMES.split())}
CONCURRENT, BUSY, AWAIT_TASK, RUN_QUEUE = "(concurrent task)", "(event loop busy)", "(await Task)", "(waits for a CPU)"
PACKAGE = re.compile(r"(?:.*(?:site-packages|python3\.\d+)/|<frozen )(\w+)")


@dataclass
class Verdict:
    """Of the profiles of one process, or of several."""

    waits: int = 0
    weight: int = 0
    """Their nanoseconds."""
    wrong: collections.Counter[str] = field(default_factory=collections.Counter)
    """Samples by what in them cannot be."""
    seen: set[str] = field(default_factory=set)
    """Functions of the program that waited."""


def judge(profiles: Iterable[pprof.Profile], verdict: Verdict) -> None:
    for profile in profiles:
        for sample in profile.samples if profile.sample_types == WALL else ():
            if is_wait(sample):
                verdict.waits += sample.values[0]
                verdict.weight += profile.weight(sample)
                mistake, seen = verdict_on(sample)
                verdict.seen.add(seen)
                if mistake:
                    verdict.wrong[mistake] += sample.values[0]


def is_wait(sample: pprof.Sample) -> bool:
    """Not what the profiler makes of CPU samples."""
    state = sample.labels["state"]
    return state not in ("cpu", "gc") and not (state == "run_queue" and sample.names[0] == RUN_QUEUE)


def verdict_on(sample: pprof.Sample) -> tuple[str, str]:
    """What is wrong with it, if anything, and the innermost function of the program."""
    stack = sample.stack
    is_beside = stack[-1].function == CONCURRENT
    if is_beside:
        stack = stack[:-1]
    ways = [stack[1:]]
    # A task that is awaited, and what kept the loop busy where that is known, stand above those who awaited.
    if stack[0].function == AWAIT_TASK:
        ways = [stack[2:]]
    elif stack[0].function == BUSY:
        ways += [stack[2:], stack[3:]]
    verdicts = [next(mistakes(sample, way, is_beside), "") for way in ways]
    innermost = next(filter(None, map(own_name, ways[-1])), "")
    return ("" if "" in verdicts else verdicts[0]), innermost


def mistakes(sample: pprof.Sample, stack: tuple[pprof.Frame, ...], is_beside: bool) -> Iterator[str]:
    """`stack` is without the call that waited."""
    state, leaf, span = sample.labels["state"], sample.names[0], sample.labels.get("span_name", "")
    said = f"{leaf} in {' < '.join(map(last_name, stack[:8]))}"
    names = [own_name(frame) for frame in stack]
    own = [place for place, name in enumerate(names) if name]
    if not own:
        yield f"no function of the program: span {span}, state {state}, {said}"
        return
    if unknown := next((names[place] for place in own if names[place] not in FUNCTIONS), ""):
        yield f"{unknown} is no function of the program: {said}"
        return
    innermost = names[own[0]]
    function = FUNCTIONS[innermost]
    is_between = innermost == LOOP and span != LOOP_SPAN and any(is_between_steps(frame) for frame in stack[: own[0]])
    is_innermost = True
    for name in (names[place] for place in own):
        spans = FUNCTIONS[name].own_spans if is_innermost else FUNCTIONS[name].spans
        if not is_between and not is_among(span, spans):
            yield f"{name} in the span {span}: {said}"
        if name == HANDLER and span == HANDLED:
            break
        is_innermost = name in HANDLERS
    if (state, leaf) not in ANYWHERE and not {(state, leaf), (state, ANY)} & function.waits:
        yield f"{innermost} in the state {state}: {said}"
    for frame in stack[: own[0]]:
        if (state, leaf) not in ANYWHERE and not {package_of(frame), ANY} & function.files:
            yield f"{innermost} below {frame.function} of {frame.file}: {said}"
    for callee, caller in zip(own, [*own[1:], None]):
        below = names[caller] if caller is not None else ""
        through = "~" if (len(stack) if caller is None else caller) > callee + 1 else "" if below else "-"
        callers = FUNCTIONS[names[callee]].callers
        if below + through not in callers and ANY not in callers:
            yield f"{names[callee]} called by {below + through}: {said}"
    if is_beside != (sample.labels.get("flow") == "concurrent"):
        yield f"flow {sample.labels.get('flow')}: {said}"
    if is_beside and not is_between and span not in INHERITED or not is_beside and (is_between or innermost in BESIDE):
        yield f"{innermost} {'beside' if is_beside else 'as'} the span's own flow: {said}"


def is_between_steps(frame: pprof.Frame) -> bool:
    return package_of(frame) == "asyncio" and last_name(frame) == "_run"


def own_name(frame: pprof.Frame) -> str:
    return last_name(frame) if frame.file.rpartition("/")[2] in FILES else ""


def last_name(frame: pprof.Frame) -> str:
    return frame.function.rpartition(".")[2]


def package_of(frame: pprof.Frame) -> str:
    found = PACKAGE.match(frame.file)
    return found[1] if found else frame.file
