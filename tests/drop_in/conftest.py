"""Tests that this package takes the place of pyroscope-io 1.4.0 and pyroscope-otel 1.1.0.

Run with the interpreter that has the wheel and requirements.txt; PEERS is an interpreter of the same version that has
Grafana's packages instead of the wheel. ci/test makes both.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support" / "python"))


def run(python: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Runs a program with no settings but `env`; returns what it printed. It must end well."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYROSCOPE_", "OTEL_"))}
    environment.update(PYTHONPATH=str(HERE / "services"), **(env or {}))
    done = subprocess.run(
        [python, *arguments], env=environment, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def peers() -> str:
    """The interpreter that has Grafana's packages."""
    python = os.environ.get("PEERS")
    if not python:
        pytest.skip("PEERS is not set: no interpreter with pyroscope-io 1.4.0 and pyroscope-otel 1.1.0")
    return python
