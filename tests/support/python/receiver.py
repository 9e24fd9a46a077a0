"""A server that takes Pyroscope's Push on the loopback, for tests and measurements: `fault-server --receive`, in a process of its own."""

import json
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message

import pprof

PUSH = "/push.v1.PusherService/Push"


@dataclass(frozen=True)
class Series:
    """A profile with its series' labels."""

    labels: dict[str, str]
    profile: pprof.Profile


class Receiver:
    """Listens from its making until `with` ends. What came in: `series`; `requests` (path, headers), one a series; `errors`, why others
    could not be read."""

    def __init__(self, listener: socket.socket | None = None) -> None:
        """`listener`: a bound socket to listen on, else a free port is taken."""
        self._series: list[Series] = []
        self._requests: list[tuple[str, Message]] = []
        self._errors: list[str] = []
        given = []
        if listener is not None:
            listener.listen()
            given = [listener.fileno()]
        self._server = subprocess.Popen(
            [pprof.SERVER, "--receive", *map(str, given)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", pass_fds=given,
        )  # fmt: skip
        if listener is not None:
            listener.close()
        self.port = json.loads(self._server.stdout.readline())["port"]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Receiver":
        return self

    def __exit__(self, *_: object) -> None:
        self._take()
        self._server.communicate()

    @property
    def series(self) -> list[Series]:
        self._take()
        return self._series

    @property
    def requests(self) -> list[tuple[str, Message]]:
        self._take()
        return self._requests

    @property
    def errors(self) -> list[str]:
        self._take()
        return self._errors

    def wait_for(self, condition: Callable[[], bool], timeout: float = 30) -> bool:
        """Waits until `condition` holds, looking at it whenever a profile comes in."""
        until = time.monotonic() + timeout
        while not condition():
            left = until - time.monotonic()
            if left < 0:
                return False
            self._take(left)
        return True

    def profiles(self, kind: str = "process_cpu") -> list[pprof.Profile]:
        """Profiles of one kind."""
        return [series.profile for series in self.series if series.labels.get("__name__") == kind]

    def _take(self, patience: float = 0) -> None:
        """Takes what has come, and waits this long for it to be something; after the end of `with` nothing more comes."""
        if self._server.stdin.closed:
            return
        print(patience, file=self._server.stdin, flush=True)
        for push in json.loads(self._server.stdout.readline()):
            if "error" in push:
                self._errors.append(push["error"])
                continue
            headers = Message()
            for name, value in push["headers"]:
                headers[name] = value
            self._requests.append((push["path"], headers))
            self._series.append(Series(push["labels"], pprof.profile_of(push["profile"])))
