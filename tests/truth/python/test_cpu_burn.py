"""CPU time that was burnt is CPU time that is seen, also in threads that are shorter than a period.

Samples are drawn by chance, so few of them say less: `ci/bench python` measures the same with more, to three percent.
"""

import json
from pathlib import Path

import children
import cpu_burn
import pprof
import pytest


@pytest.mark.parametrize("kind", cpu_burn.KINDS)
def test_what_is_seen_is_what_was_burnt(kind: str, tmp_path: Path) -> None:
    records, folder = tmp_path / "records.json", tmp_path / "profiles"
    arguments = (kind, "--rate", "1000", "--scale", "0.1", "--server", folder.as_uri(), "--records", records)
    children.succeeded(children.run(cpu_burn.__file__, *arguments))
    record = json.loads(records.read_text())
    children.assert_adds_up(record["stats"])
    seen = sum(profile.total() for profile in pprof.read_folder(folder))
    burnt = record["process_ns"] - record["own_ns"]
    assert 0.9 < seen / burnt < 1.1, f"{seen / burnt:.3f} of {burnt} ns"
