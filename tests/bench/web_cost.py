"""What `wall_time` costs a web service: CPU time a request, with it over without, both with the profiler at 100 Hz.

A request has a root span and three children. Each child asks a backend (another process, which answers after half a
millisecond) over a kept connection, and works with the answer: JSON, sorting, a template. Between them it takes a lock and
asks SQLite. `threads` serves by eight threads, `asyncio` by eight tasks of one loop. About a millisecond of CPU time each,
some forty calls that may wait.

The slices, their order (ABBA), the pairs and the control are overhead.py's; here a slice without has `wall_time=False`. Each
slice ends with a `flush`, so cutting, encoding and upload of what was waited for is in it, more often than in a service.

    python web_cost.py threads --pairs 30 --requests 3200 --server file:///folder --records records.json
"""

import argparse
import asyncio
import collections
import gc
import http.client
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import overhead

WORKERS = 8
LINES = [{"sku": f"item{n}", "price": 100 + n * 7 % 31, "count": n % 5} for n in range(60)]
ANSWER = json.dumps({"lines": LINES}).encode()
HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(ANSWER)}\r\n\r\n".encode()
ASK = b"GET /lines HTTP/1.1\r\nHost: backend\r\nAccept-Encoding: identity\r\n\r\n"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        try:
            await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            writer.close()
            return
        await asyncio.sleep(0.0005)
        writer.write(HEAD + ANSWER)


async def backend() -> None:
    """Says its port in a line, and ends when its parent does."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def work_with(body: bytes) -> str:
    lines = sorted(json.loads(body)["lines"], key=lambda line: (line["price"], line["sku"]))
    return "\n".join(f"<tr><td>{line['sku']:>10}</td><td>{line['price'] / 100:.2f}</td></tr>" for line in lines)


class Shared:
    """What requests share: a lock and a database."""

    def __init__(self) -> None:
        self.lock, self.served = threading.Lock(), 0
        self.database = sqlite3.connect(":memory:", check_same_thread=False)
        self.database.execute("create table items (sku text primary key, stock integer)")
        self.database.executemany("insert into items values (?, ?)", [(line["sku"], line["count"]) for line in LINES])

    def stock(self) -> int:
        with self.lock:
            self.served += 1
            return self.database.execute("select sum(stock) from items where sku > ?", ("item3",)).fetchone()[0]


class Threads(overhead.Service):
    """Eight threads that wait for slices of requests, a connection each."""

    def __init__(self, port: int) -> None:
        self.port, self.shared = port, Shared()
        super().__init__(WORKERS)

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._serve(self._handle, connection)
        connection.close()

    def _handle(self, tracer, connection: http.client.HTTPConnection) -> None:
        with tracer.start_as_current_span("GET /order"):
            for name in ("lines", "prices", "page"):
                with tracer.start_as_current_span(name):
                    connection.request("GET", "/lines")
                    work_with(connection.getresponse().read())
                self.shared.stock()


class Tasks:
    """Eight tasks of one loop, a connection each."""

    def __init__(self, port: int) -> None:
        self.loop, self.port, self.shared = asyncio.new_event_loop(), port, Shared()
        self.connections = self.loop.run_until_complete(self._connect())

    async def _connect(self) -> list:
        return [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(WORKERS)]

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(ASK)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        return await reader.readexactly(int(head.split(b"Content-Length: ")[1]))

    async def _serve(self, tracer, requests: int, connection) -> None:
        for _ in range(requests):
            with tracer.start_as_current_span("GET /order"):
                for name in ("lines", "prices", "page"):
                    with tracer.start_as_current_span(name):
                        work_with(await self._ask(*connection))
                    self.shared.stock()

    async def _slice(self, tracer, requests: int) -> None:
        await asyncio.gather(*(self._serve(tracer, requests, connection) for connection in self.connections))

    def slice(self, tracer, requests: int) -> None:
        """Each task handles that many requests."""
        self.loop.run_until_complete(self._slice(tracer, requests))

    def end(self) -> None:
        for _, writer in self.connections:
            writer.close()
        self.loop.close()


class Slices:
    """Slices with and without `wall_time`, and what the profiler counted of the waits."""

    def __init__(self, pyroscope, server: str, service: Threads | Tasks, requests: int) -> None:
        from opentelemetry.sdk.resources import Resource

        self.pyroscope, self.server, self.service, self.each = pyroscope, server, service, max(1, requests // WORKERS)
        self.resource = Resource({"service.name": "web"})
        self.counts: collections.Counter[str] = collections.Counter()

    def without(self) -> float:
        """CPU nanoseconds a request."""
        return self._time(wall_time=False)

    def with_profiler(self) -> float:
        return self._time(wall_time=True)

    def _time(self, *, wall_time: bool) -> float:
        from opentelemetry.sdk.trace import TracerProvider
        from pyroscope.otel import PyroscopeSpanProcessor

        self.pyroscope.configure(
            application_name="web", server_address=self.server, sample_rate=overhead.RATE, wall_time=wall_time
        )
        provider = TracerProvider(resource=self.resource, shutdown_on_exit=False)
        processor = PyroscopeSpanProcessor()
        provider.add_span_processor(processor)
        tracer = provider.get_tracer("web")
        # The threads get their timers and records, the interpreter its inline caches, and the samples of waits that may come at first
        # are spent, before the clock is read: a service starts once.
        self.service.slice(tracer, self.each)
        gc.collect()
        before = self.pyroscope.stats()
        began, began_wall = time.process_time_ns(), time.monotonic_ns()
        self.service.slice(tracer, self.each)
        self.pyroscope.flush(30)
        took, took_wall = time.process_time_ns() - began, time.monotonic_ns() - began_wall
        stats = self.pyroscope.stats()
        kind = "on" if wall_time else "off"
        self.counts[f"{kind}_samples"] += stats["taken"]["samples"] - before["taken"]["samples"]
        self.counts[f"{kind}_own_ns"] += stats["own_cpu_ns"] - before["own_cpu_ns"]
        self.counts[f"{kind}_cpu_ns"] += took
        self.counts[f"{kind}_wall_ns"] += took_wall
        processor.shutdown()
        self.pyroscope.shutdown()
        return took / (self.each * WORKERS)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("service", choices=["threads", "asyncio", "backend"])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--requests", type=int, default=3200, help="in a slice, of all workers")
    parser.add_argument("--server")
    parser.add_argument("--records", type=Path)
    options = parser.parse_args(arguments)
    if options.service == "backend":
        asyncio.run(backend())
        return

    import pyroscope

    processors = sorted(os.sched_getaffinity(0))
    command = [sys.executable, __file__, "backend"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        os.sched_setaffinity(other.pid, {processors[0]})
        os.sched_setaffinity(0, {processors[-1]})
        service = {"threads": Threads, "asyncio": Tasks}[options.service](int(other.stdout.readline()))
        slices = Slices(pyroscope, options.server, service, options.requests)
        # A collection of garbage in one of two slices would be most of their difference.
        gc.collect()
        gc.freeze()
        record = overhead.measure(slices, options.pairs)
        service.end()
        other.stdin.close()
    options.records.write_text(json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1:])
