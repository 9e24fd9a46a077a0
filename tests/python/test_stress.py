"""15 s of a hostile program under 5 kHz timers: it must live, and each call in its profiles must be one of its own."""

import collections
import json
import os
from pathlib import Path

import children
import pprof
import stress
from test_truth import assert_adds_up

SECONDS = float(os.environ.get("STRESS_SECONDS", "15"))


def test_hostile_program_lives_and_its_stacks_are_its_own(tmp_path: Path) -> None:
    records, folder = tmp_path / "records.json", tmp_path / "profiles"
    arguments = ("--seconds", str(SECONDS), "--server", folder.as_uri(), "--records", records)
    children.succeeded(children.run(children.HERE / "stress.py", *arguments, timeout=SECONDS + 300))
    stats = json.loads(records.read_text())
    taken, dropped = (stats[name]["samples"] for name in ("taken", "dropped_ring"))
    assert taken >= 100_000 * min(1.0, SECONDS / 15)
    assert_adds_up(stats)

    pairs: collections.Counter[tuple[str, str]] = collections.Counter()
    own: collections.Counter[str] = collections.Counter()
    for profile in pprof.read_folder(folder):
        for sample in profile.samples:
            for callee, caller in zip(sample.stack, sample.stack[1:]):
                if is_own(callee) and is_own(caller):
                    pairs[callee.function, caller.function] += 1
            own.update(frame.function for frame in sample.stack if is_own(frame))
    print(f"{taken} samples taken, {dropped} dropped as a ring was full; {sum(pairs.values())} calls, {len(pairs)} different")
    strange = {pair: count for pair, count in pairs.items() if not stress.is_allowed(*pair)}
    assert not strange
    # Each kind of work was seen at all.
    kinds = {"inner_generator", "dive", "fall", "inner_step", "swim_deep", "set_many", "compare", "short_thread"}
    assert kinds <= own.keys()
    assert any(name.startswith("leaf_") for name in own)


def is_own(frame: pprof.Frame) -> bool:
    return frame.file.endswith("stress.py") or frame.file == stress.MADE_FILE
