"""Every sample carries the span that was current when it was taken, and stats() knows each of them.

`ci/bench python` judges the same program over more samples and beside other packages.
"""

import json
from pathlib import Path

import children
import pprof
import pytest
import truth


@pytest.mark.parametrize("row", truth.ROWS)
def test_samples_carry_the_span_that_the_program_says(row: str, tmp_path: Path) -> None:
    if why_not := truth.ROWS[row].why_not():
        pytest.skip(why_not)
    records, folder = tmp_path / "records.json", tmp_path / "profiles"
    server = folder.as_uri()
    children.succeeded(
        children.run(
            # No more than what is asserted needs: an interpreter for each row is long enough.
            *(truth.__file__, row, "--rate", "250", "--cpu-seconds", "1"),
            *("--server", server, "--records", records),
        )
    )
    record = json.loads(records.read_text())
    profiles = pprof.read_folder(folder)
    outcome = truth.judge(profiles, record["expected"])
    assert (outcome.missing, outcome.wrong, outcome.leaked) == (0, 0, 0), outcome
    # Of some 250 samples; how many fall on the edges of spans, which are judged above but tell less, is the machine's.
    assert outcome.right >= 100, outcome

    stats = record["stats"]
    written = profiles[: stats["profiles_uploaded"]]
    assert record["flushed"]
    assert sum(profile.total() for profile in written) == stats["uploaded"]["weight"]
    children.assert_adds_up(stats)
