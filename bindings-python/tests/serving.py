"""Runs a program of several processes and judges what they sent: each was profiled, and all of it arrived once."""

import collections
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import pytest
from conftest import PATHS, TESTS
from receiver import Receiver

WORKERS = 2


class OverUnix(http.client.HTTPConnection):
    def __init__(self, path: pathlib.Path) -> None:
        super().__init__("localhost", timeout=20)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class Served:
    """A server that is run and what its processes sent and reported."""

    def __init__(self, folder: pathlib.Path, receiver: Receiver) -> None:
        self.folder = folder
        self.receiver = receiver
        self.listens = folder / "socket"
        self.done = folder / "done"
        self.reports = folder / "reports"
        self.reports.mkdir()
        self.answered: collections.Counter[int] = collections.Counter()

    def start(self, *command: object) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYROSCOPE_", "OTEL_"))}
        path = os.pathsep.join(map(str, (TESTS / "served", TESTS, *PATHS)))
        environment |= {"PYTHONPATH": path, "REPORTS": str(self.reports), "DONE": str(self.done)}
        environment |= {"PYROSCOPE_SERVER_ADDRESS": self.receiver.url}
        self.log = (self.folder / "log").open("w+")
        self.process = subprocess.Popen(
            list(map(str, command)), env=environment, cwd=self.folder, stdout=self.log, stderr=self.log, start_new_session=True
        )

    def output(self, end: int | None = 3000) -> str:
        return (self.folder / "log").read_text()[-end if end else 0 :]

    def wait_until(self, condition, what: str) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, f"{what}\n{self.output()}"
            time.sleep(0.02)

    def ask(self) -> bool:
        """Asks once; False where nobody listens yet."""
        connection = OverUnix(self.listens)
        try:
            connection.request("GET", "/")
            self.answered[int(connection.getresponse().read())] += 1
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        finally:
            connection.close()
        return True

    def ask_until_all_answered(self, workers: int = WORKERS) -> None:
        def enough() -> bool:
            self.ask()
            return len(self.answered) == workers and sum(self.answered.values()) >= 10

        self.wait_until(enough, f"{workers} workers did not answer: {self.answered}")

    def end(self) -> None:
        """As a supervisor does: TERM to the first process, which sees to the others."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it did not end\n{self.output()}")

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (AttributeError, ProcessLookupError):
            pass
        else:
            self.process.wait(10)

    def reported(self) -> list[dict]:
        """The final stats() of the processes that have ended."""
        return [json.loads(path.read_text()) for path in self.reports.glob("*.json")]

    def check(self, workers, loaders: int, late: int = 0) -> None:
        """Each of the workers was profiled, and the program's loading in so many processes, of `late` ones perhaps; nothing is lost or
        twice."""
        profiles = self.receiver.profiles()
        assert not self.receiver.errors
        weights: collections.Counter[str] = collections.Counter()
        for profile in profiles:
            for sample in profile.samples:
                # Servers have functions such as worker_exit.
                name = next((name for name in sample.names if re.fullmatch(r"(worker|loader)_\d+", name)), "")
                weights[name] += profile.weight(sample)
                if name.startswith("worker_"):
                    assert "span_id" in sample.labels, sample
        assert {name for name in weights if name.startswith("worker_")} == {f"worker_{pid}" for pid in workers}
        loaded = [name for name in weights if name.startswith("loader_")]
        assert loaders <= len(loaded) <= loaders + late, loaded
        # What a kernel that has much to do tells late may be of what ran before.
        burnt = {name: int((self.reports / name).read_text()) for name in loaded}
        assert all(weights[name] < burnt[name] + 0.09e9 for name in loaded), f"sent once: {weights} of {burnt}"

        reports = self.reported()
        of = {name: sum(report[name]["weight"] for report in reports) for name in ("taken", "uploaded", "pending")}
        pending = [report["pending"]["samples"] for report in reports]
        dropped = sum(
            value["weight"]
            for report in reports
            for name, value in report.items()
            if isinstance(value, dict) and name in ("dropped_ring", "dropped_window", "dropped_queue", "dropped_old", "refused", "discarded")
        )
        assert sum(profile.total() for profile in profiles) == of["uploaded"]
        assert dropped == 0
        # A process that a signal ends sends before it does; it may be seen once more meanwhile.
        assert of["taken"] - of["uploaded"] == of["pending"] and max(pending, default=0) <= 2, (of, pending)
