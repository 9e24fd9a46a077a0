"""A hostile program under timers of 2.5 kHz: it must live, and each call and span in its profiles must be one of its own.

`ci/soak python` runs the same for longer, at 5 kHz.
"""

import os
from pathlib import Path

import children
import pytest
import soak

SECONDS = float(os.environ.get("STRESS_SECONDS", "10"))
# A dozen threads whose clocks go on while they wait: at twice the rate a machine with other work has time for handlers alone.
RATE = 2_500


@pytest.mark.parametrize("jit", [False, True] if soak.has_jit() else [False])
def test_hostile_program_lives_and_its_stacks_and_spans_are_its_own(jit: bool, tmp_path: Path) -> None:
    seconds = SECONDS / 2 if soak.has_jit() else SECONDS
    outcome = soak.run(seconds, tmp_path, rate=RATE, jit=jit)
    print(f"{outcome.samples} samples, {outcome.unreadable} unreadable, {outcome.faults} faults")
    assert not outcome.mistakes()
    assert outcome.samples >= 1_000 * seconds
    children.assert_adds_up(outcome.stats)
