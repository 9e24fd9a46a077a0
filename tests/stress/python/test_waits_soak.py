"""A program that waits in all ways, each wait a sample: every sample has a span, a state, a call and a stack that the program can have.

`ci/soak waits python` runs the same for longer.
"""

from pathlib import Path

import pprof
import pytest
import waits_judge
import waits_soak

SECONDS = 2


def test_each_wait_of_a_hostile_program_is_in_its_own_span_and_stack(tmp_path: Path) -> None:
    outcome = waits_soak.run(SECONDS, tmp_path)
    print(f"{outcome.waits('sampled')} waits, {outcome.dropped} dropped")
    assert not outcome.mistakes()
    assert outcome.waits("sampled") >= 1_000


def sample(span: str, state: str, *functions: str) -> pprof.Sample:
    """Its functions are of the program, but for the call."""
    names = [functions[0], *functions[1:], "work_on", "live"]
    frames = [pprof.Frame(name, "waits_work.py" if place else "", 1, 1) for place, name in enumerate(names)]
    foreign = pprof.Frame("Thread.run", "python3.12/threading.py", 1, 1)
    return pprof.Sample((*frames, foreign), (1, 5_000), {"span_name": span, "state": state})


@pytest.mark.parametrize(
    "mistake, one",
    [
        ("", sample("inner", "sleep", "clock_nanosleep", "sleep_in_inner", "nests")),
        ("", sample("inner", "gil", "(waits for the GIL)", "nests")),
        ("sleep_in_inner in the span outer", sample("outer", "sleep", "clock_nanosleep", "sleep_in_inner", "nests")),
        ("sleep_outside in the span outer", sample("outer", "sleep", "clock_nanosleep", "sleep_outside", "outside")),
        ("sleep_in_inner in the state io", sample("inner", "io", "read", "sleep_in_inner", "nests")),
        ("sleep_in_inner called by sleep_in_inner", sample("inner", "sleep", "select", "sleep_in_inner", "sleep_in_inner", "nests")),
        ("wait_in_handler in the span handled", sample("handled", "sleep", "clock_nanosleep", "wait_in_handler", "on_disturbance", "nests")),
        ("", sample("inner", "sleep", "clock_nanosleep", "wait_in_handler", "on_disturbance", "sleep_in_inner", "nests")),
        ("", sample("handled", "sleep", "clock_nanosleep", "wait_in_handled", "on_disturbance", "is_over")),
        ("is_over called by nests", sample("handled", "sleep", "clock_nanosleep", "wait_in_handled", "on_disturbance", "is_over", "nests")),
        ("sleep_in_inner in the span outer", sample("outer", "sleep", "select", "wait_in_handler", "on_alarm", "sleep_in_inner", "nests")),
    ],
)
def test_the_judge_knows_what_cannot_be(mistake: str, one: pprof.Sample) -> None:
    said, _ = waits_judge.verdict_on(one)
    assert said.startswith(mistake) and bool(said) == bool(mistake)
