"""What a user does with the package, in one process: a wrong setting, a span that burns CPU time, and what became of it.

    python program.py FOLDER        prints one JSON object; the profiles go into the folder
"""

import json
import logging
import platform
import sys
import time

import pyroscope
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from pyroscope import _native
from pyroscope.otel import PyroscopeSpanProcessor


class Messages(logging.Handler):
    """Keeps what the profiler tells the user."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def spin_in_the_span(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(500))


def refused_setting() -> str:
    try:
        pyroscope.configure(application_name="shop", server_address="file:///tmp", sample_rate=0)
    except ValueError as error:
        return str(error)
    return ""


def seen_from_inside(span_id: int) -> dict[str, object]:
    """What the sampler's own code reads of this thread, without a signal."""
    try:
        functions = [frame[0] for frame in _native.walk()]
        return {"functions": functions, "span_is_seen": _native.current_span_id() == span_id}
    except RuntimeError as error:
        return {"refused": str(error)}


def main(folder: str) -> None:
    messages = Messages()
    logging.getLogger("pyroscope").addHandler(messages)
    refused = refused_setting()
    running = pyroscope.configure(application_name="shop", server_address=f"file://{folder}", sample_rate=100)
    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    provider.add_span_processor(PyroscopeSpanProcessor())
    with provider.get_tracer("package").start_as_current_span("GET /cart") as span:
        seen = seen_from_inside(span.get_span_context().span_id)
        spin_in_the_span(1)
    flushed = pyroscope.flush(30)
    stats = pyroscope.stats()
    pyroscope.shutdown()
    print(
        json.dumps(
            {
                "machine": platform.machine(),
                "version": platform.python_version(),
                "refused": refused,
                "running": running,
                "seen": seen,
                "attributes": dict(span.attributes or {}),
                "flushed": flushed,
                "stats": stats,
                "messages": messages.texts,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
