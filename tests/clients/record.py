"""Stands between a client and the viewer and keeps what the client uploads, as it came: `record.py FOLDER URL [--port N]`.

Each upload of profiles becomes a file NN.http of FOLDER, the request with its head and body, of which viewer/tests/clients.rs sends the bytes
again. Whatever comes is passed on to the viewer at URL, whose answers go back. Prints its own address.
"""

import argparse
import http.client
import http.server
import itertools
import urllib.parse
from pathlib import Path

#: Of a client's headers these are kept; others say nothing that counts.
KEPT = ("content-type", "content-encoding", "user-agent")


def handler(folder: Path, viewer: urllib.parse.SplitResult) -> type[http.server.BaseHTTPRequestHandler]:
    numbers = itertools.count(1)

    class Recorder(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.body()
            if not self.path.endswith("/v1/traces"):
                head = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items() if name.lower() in KEPT)
                request = f"POST {self.path} HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body
                (folder / f"{next(numbers):02}.http").write_bytes(request)
            self.pass_on(body)

        def do_GET(self) -> None:
            self.pass_on(b"")

        def body(self) -> bytes:
            if self.headers.get("transfer-encoding", "") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length", "0")))
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def pass_on(self, body: bytes) -> None:
            connection = http.client.HTTPConnection(viewer.hostname, viewer.port)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "transfer-encoding", "content-length", "connection")}
            connection.request(self.command, self.path, body if self.command == "POST" else None, headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                print(f"HTTP {answer.status} to {self.path}: {text.decode(errors='replace')}", flush=True)
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers.get("content-type", ""))
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    return Recorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("url", help="where the viewer listens")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), handler(options.folder, urllib.parse.urlsplit(options.url)))
    print(f"recording on http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
