"""Keeps what a client sends: `capture.py FOLDER`. Prints its URL; each request becomes N.query, N.headers and N.body."""

from __future__ import annotations

import itertools
import pathlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NUMBERS = itertools.count()


class Capture(BaseHTTPRequestHandler):
    folder: pathlib.Path

    def do_POST(self) -> None:
        number = next(NUMBERS)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else self.chunks()
        (self.folder / f"{number}.query").write_text(self.path)
        (self.folder / f"{number}.headers").write_text("".join(f"{name}: {value}\n" for name, value in self.headers.items()))
        (self.folder / f"{number}.body").write_bytes(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    Capture.folder = pathlib.Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Capture)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
