"""A server that takes Pyroscope's Push on the loopback, for tests and measurements.

It runs in the process that judges, never in the one that is profiled, unless a test is about the upload alone.
"""

import gzip
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pprof

PUSH = "/push.v1.PusherService/Push"


@dataclass(frozen=True)
class Series:
    """A profile with its series' labels."""

    labels: dict[str, str]
    profile: pprof.Profile


class Receiver:
    """Listens from `with` on; `series` grows as profiles come in, `requests` with what they came in (path, headers)."""

    def __init__(self, listener: socket.socket | None = None) -> None:
        """`listener`: a bound socket to listen on, else a free port is taken."""
        self.series: list[Series] = []
        self.requests: list[tuple[str, Message]] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self), bind_and_activate=False)
        if listener is None:
            self._server.server_bind()
        else:
            self._server.socket.close()
            self._server.socket = listener
        self._server.server_activate()
        self.port = self._server.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> "Receiver":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait_for(self, condition: Callable[[], bool], timeout: float = 30) -> bool:
        """Waits until `condition` holds, looking at it whenever a profile comes in."""
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def profiles(self, kind: str = "process_cpu") -> list[pprof.Profile]:
        """Profiles of one kind."""
        return [series.profile for series in self.series if series.labels.get("__name__") == kind]

    def take(self, body: bytes) -> None:
        """Takes one PushRequest."""
        taken = list(series_of(body))
        with self._changed:
            self.series += taken
            self._changed.notify_all()


def series_of(body: bytes) -> list[Series]:
    """The profiles in a PushRequest: `series = 1 {labels = 1 {name = 1, value = 2}, samples = 2 {raw_profile = 1}}`."""
    found = []
    for data in pprof.Message(body).many(1):
        series = pprof.Message(data)
        pairs = [pprof.Message(label) for label in series.many(1)]
        labels = {pair.one(1).decode(): pair.one(2).decode() for pair in pairs}
        for sample in series.many(2):
            found.append(Series(labels, pprof.parse(pprof.Message(sample).one(1))))
    return found


def handler_of(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            receiver.requests.append((self.path, self.headers))
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not self.path.endswith(PUSH):
                self.answer(404)
                return
            try:
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.take(body)
            except (ValueError, KeyError, IndexError, OSError, EOFError) as error:
                receiver.errors.append(f"{type(error).__name__}: {error}")
                self.answer(400)
            else:
                self.answer(200)

        def do_GET(self) -> None:
            self.answer(404)

        def answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/proto")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the output belongs to the tests."""

    return Handler
