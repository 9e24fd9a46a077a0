"""Runs programs of the tests in processes of their own, with the interpreter that runs the tests; what their stats() must be."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
# Where programs find what they share.
PATHS = [TESTS / "support" / "python", TESTS / "truth" / "python"]
# A child that hangs is a failure, found long before a person would give up.
TIMEOUT = 300


def run(
    *arguments: str | Path, environment: dict[str, str] | None = None, timeout: float = TIMEOUT
) -> subprocess.CompletedProcess[str]:
    """Runs `python arguments…` and waits. Of our variables the child has those in `environment` alone."""
    kept = {name: value for name, value in os.environ.items() if not is_ours(name)}
    path = os.pathsep.join(filter(None, (*map(str, PATHS), kept.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**kept, "PYTHONPATH": path, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def shell_code(code: int) -> int:
    """An exit code as a shell has it, for one of `subprocess`, which is below 0 for a process that was killed by this signal."""
    return code if code >= 0 else 128 - code


def is_ours(name: str) -> bool:
    return name.startswith(("PYROSCOPE_", "OTEL_"))


def succeeded(finished: subprocess.CompletedProcess[str]) -> str:
    """The child's output, once it is known to have ended well."""
    assert finished.returncode == 0, f"exit code {finished.returncode}\n{finished.stdout}\n{finished.stderr[-4000:]}"
    return finished.stdout


def assert_adds_up(stats: dict) -> None:
    """Nothing that was taken is lost unsaid."""
    for unit in ("samples", "weight"):
        of = {name: value[unit] for name, value in stats.items() if isinstance(value, dict)}
        assert of["taken"] == of["dropped_ring"] + of["dropped_window"] + of["pending"] + of["encoded"], of
        ended = of["uploaded"] + of["refused"] + of["dropped_queue"] + of["dropped_old"] + of.get("discarded", 0)
        assert of["encoded"] == of["queued"] + ended, of
        fates = ("sampled", "outside", "pending", "dropped_ring", "dropped_busy", "dropped_thread")
        assert of["waits_taken"] == sum(of[f"waits_{fate}"] for fate in fates), of
