"""A program that is profiled while its server misbehaves; see ../README.md for what a client does in any language."""

import json
import logging
import sys
import threading
import time

from opentelemetry.sdk.trace import TracerProvider

import pyroscope
from pyroscope.otel import PyroscopeSpanProcessor

PATIENCE = float(sys.argv[1])

messages: list[str] = []
blocked: list[float] = []


class Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        messages.append(record.getMessage())


def neither_ran_nor_could() -> float:
    """Seconds in which this thread neither ran nor waited for a processor: /proc says how long it did either."""
    with open("/proc/thread-self/schedstat") as file:
        ran, waited, _ = map(int, file.read().split())
    return time.monotonic() - (ran + waited) / 1e9


def app(half: threading.Event) -> None:
    """100 ms of CPU in 100 spans."""
    before = neither_ran_nor_could()
    for number in range(100):
        if number == 50:
            half.set()
        with tracer.start_as_current_span("work"):
            until = time.thread_time() + 0.001
            while time.thread_time() < until:
                sum(range(100))
    blocked.append(neither_ran_nor_could() - before)


logging.getLogger("pyroscope").addHandler(Keep())
provider = TracerProvider()
provider.add_span_processor(PyroscopeSpanProcessor())
tracer = provider.get_tracer("faults")
assert pyroscope.configure()
for _ in range(2):
    half = threading.Event()
    thread = threading.Thread(target=app, args=[half])
    thread.start()
    half.wait()
    # It must not matter to the app that somebody waits for a bad server.
    pyroscope.flush(0.15)
    thread.join()
    pyroscope.flush(PATIENCE)
since = time.monotonic()
pyroscope.shutdown()
stopped_in = time.monotonic() - since
result = {"stats": pyroscope.stats(), "messages": messages, "blocked": max(blocked), "stopped_in": stopped_in}
print(json.dumps(result))
