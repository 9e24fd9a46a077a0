"""One measurement: a program in a process of its own, what it recorded and uploaded, and the cell of the table."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support" / "python"
TRUTH = ROOT / "tests" / "truth" / "python"
BENCH = ROOT / "tests" / "bench"
PACKAGE = ROOT / "tests" / "packages"
sys.path[:0] = map(str, (SUPPORT, TRUTH, PACKAGE))

import pprof  # noqa: E402
import receiver  # noqa: E402

#: A program that takes longer is stuck.
TIMEOUT = 600

began = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - began:4.0f} s] {text}", flush=True)


@dataclass
class Cell:
    """One measurement: what the table shows, whether it is within the bound, and all numbers."""

    text: str
    good: bool | None = None
    numbers: dict = field(default_factory=dict)


@dataclass
class Row:
    what: str
    bound: str
    ours: dict[str, Cell] = field(default_factory=dict)
    peers: dict[str, Cell] = field(default_factory=dict)

    def verdict(self) -> str:
        judged = [cell.good for cell in self.ours.values() if cell.good is not None]
        return "" if not judged else "pass" if all(judged) else "MISS"


class Failed(Exception):
    """A measurement that could not be made."""


@dataclass(frozen=True)
class Run:
    """One measurement to make."""

    row: Row
    python: Path
    version: str
    is_peer: bool
    measure: Callable[["Run"], Cell]

    def make(self, deadline: float) -> None:
        """Makes it, unless the time is up. `deadline` is by the monotonic clock."""
        try:
            if time.monotonic() > deadline:
                raise Failed("the time was up before its turn (--minutes)")
            cell = self.measure(self)
        except Failed as failure:
            cell = Cell("failed", False, {"failed": str(failure)})
        say(f"{self.row.what}, {'Grafana, ' if self.is_peer else ''}Python {self.version}: {cell.text}")
        (self.row.peers if self.is_peer else self.row.ours)[self.version] = cell


def environment() -> dict[str, str]:
    """Ours, without settings of profilers and OpenTelemetry."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYROSCOPE_", "OTEL_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, (SUPPORT, TRUTH)))}


def run_program(
    python: Path, script: Path, *arguments: object, kind: str = "process_cpu"
) -> tuple[dict, list[pprof.Profile]]:
    """Runs a program, and returns what it recorded and the profiles of this kind that it uploaded."""
    with tempfile.TemporaryDirectory() as folder, receiver.Receiver() as server:
        records = Path(folder, "records.json")
        command = [python, script, *arguments, "--server", server.url, "--records", records]
        try:
            done = subprocess.run(
                list(map(str, command)), env=environment(), capture_output=True, text=True, timeout=TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{script.name} {arguments} took more than {error.timeout} s") from error
        if done.returncode != 0:
            raise Failed(f"{script.name} {arguments} ended with {done.returncode}: {done.stderr[-2000:]}")
        if server.errors:
            raise Failed(f"{script.name} {arguments} uploaded what cannot be read: {server.errors[0]}")
        return json.loads(records.read_text()), server.profiles(kind)


def ask(python: Path, program: str) -> str:
    """What a few lines of Python print."""
    done = subprocess.run(
        [python, "-c", program], cwd=SUPPORT, env=environment(), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    if done.returncode != 0:
        raise Failed(f"{program!r} ended with {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout.strip()
