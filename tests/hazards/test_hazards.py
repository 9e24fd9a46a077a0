"""What programs do to their own process, with the client of every language (README.md).

Run with the interpreter that has the wheel.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import languages  # noqa: E402

CLIENTS = HERE / "clients"
HAZARDS = json.loads((HERE / "hazards.json").read_text())["hazards"]


def expected_in(client: str, hazard: str) -> dict[str, Any]:
    """What must come of it in this language."""
    return {**HAZARDS[hazard], **HAZARDS[hazard].get("in", {}).get(client, {})}


def pairs() -> list[Any]:
    """Each hazard with the client of each language that has it."""
    return [
        pytest.param(*client.values, hazard, marks=client.marks)
        for client in languages.clients(CLIENTS)
        for hazard in HAZARDS
        if client.values[0] in HAZARDS[hazard].get("only", client.values)
        if "never" not in expected_in(client.values[0], hazard)
    ]


@pytest.mark.parametrize("client,hazard", pairs())
def test_hazard(client: str, hazard: str, tmp_path: Path) -> None:
    expected = expected_in(client, hazard)
    done = subprocess.run(
        languages.command(client, CLIENTS, hazard),
        env=languages.environment(
            OTEL_SERVICE_NAME="hazards", PYROSCOPE_SAMPLE_RATE="1000", PYROSCOPE_SERVER_ADDRESS=f"file://{tmp_path}"
        ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    ended = expected["code"] if "code" in expected else -expected["signal"]
    printed = expected.get("prints", "")
    assert (done.returncode, done.stderr[: len(printed)] if printed else done.stderr) == (ended, printed), done.stdout
    if not expected.get("reports"):
        assert done.stdout == ""
        return
    report = json.loads(done.stdout)
    languages.assert_adds_up(report["stats"])
    assert report["stats"]["taken"]["weight"] >= 0.9e9 * expected.get("sees", 0), report
    told = languages.in_any_case("\n".join(report["messages"]))
    assert all(languages.in_any_case(words) in told for words in expected.get("says", [])), report["messages"]
    if "says" not in expected:
        assert told == ""
