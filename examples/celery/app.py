"""`log-worker`: a Celery worker that analyses access logs in forked processes.

The spans of a task: `run/app.analyse` from the instrumentation of Celery, and in it `parse lines` and `percentiles`.
The broker and the results are files of SQLite, so no other program is needed.
"""

import os
import random
import re
import tempfile
from collections import defaultdict
from pathlib import Path

import pyroscope
from celery import Celery
from celery.signals import worker_process_shutdown
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pyroscope.otel import PyroscopeSpanProcessor

SERVICE = "log-worker"
LINE = re.compile(r'(\S+) - - \[([^]]+)\] "(\S+) (\S+) HTTP/1\.1" (\d{3}) (\d+) (\d+\.\d+)')

# Before the worker forks its processes: each of them goes on with a profiler and an exporter of its own.
provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # to OTEL_EXPORTER_OTLP_ENDPOINT
pyroscope.configure(
    application_name=SERVICE,
    server_address=os.environ.get("PYROSCOPE_SERVER_ADDRESS", "http://localhost:4040"),
)
provider.add_span_processor(PyroscopeSpanProcessor(scope="all"))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer(SERVICE)
CeleryInstrumentor().instrument()


@worker_process_shutdown.connect
def send_the_rest(**_: object) -> None:
    """Celery's processes end without Python's atexit."""
    provider.shutdown()
    pyroscope.shutdown()


FOLDER = Path(os.environ.get("CELERY_FOLDER", Path(tempfile.gettempdir()) / "celery-example"))
FOLDER.mkdir(parents=True, exist_ok=True)

app = Celery("app", broker=f"sqla+sqlite:///{FOLDER / 'queue.sqlite'}", backend=f"db+sqlite:///{FOLDER / 'results.sqlite'}")


@app.task
def analyse(seed: int) -> dict[str, float]:
    """The time below which 99 % of the requests of each path stayed."""
    text = make_log(seed)
    with tracer.start_as_current_span("parse lines"):
        times = parse_lines(text)
    with tracer.start_as_current_span("percentiles"):
        return {path: percentile(values, 0.99) for path, values in times.items()}


def make_log(seed: int) -> str:
    """What a web server wrote."""
    chance = random.Random(seed)
    lines = []
    for second in range(4000):
        clock = f"22/Nov/2026:10:{second // 60 % 60:02}:{second % 60:02} +0000"
        address = f"10.0.{chance.randrange(9)}.{chance.randrange(256)}"
        request = f'"GET /page/{chance.randrange(12)} HTTP/1.1"'
        lines.append(f"{address} - - [{clock}] {request} 200 {chance.randrange(9000)} {chance.random():.4f}")
    return "\n".join(lines)


def parse_lines(text: str) -> dict[str, list[float]]:
    """Seconds of each path's requests."""
    times: dict[str, list[float]] = defaultdict(list)
    for line in text.splitlines():
        path, seconds = parse_line(line)
        times[path].append(seconds)
    return times


def parse_line(line: str) -> tuple[str, float]:
    """Path and seconds of one request."""
    found = LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"not a line of an access log: {line!r}")
    fields = dict(zip(("address", "time", "method", "path", "status", "size", "seconds"), found.groups()))
    return fields["path"], float(fields["seconds"])


def percentile(values: list[float], part: float) -> float:
    """By counting, for each value, those below it."""
    for value in sorted(values):
        if sum(other <= value for other in values) >= part * len(values):
            return value
    return max(values)
