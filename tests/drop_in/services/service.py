"""What the three services share: set up as Grafana's documentation does it, asked eight times, then told to say what it did.

Runs unchanged with pyroscope-io and pyroscope-otel, and with what replaces them.
"""

import json
import sys
import time
import urllib.request

import pyroscope
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyroscope.otel import PyroscopeSpanProcessor

exporter = InMemorySpanExporter()


def set_up() -> None:
    """The lines of a service that are about profiles and traces."""
    pyroscope.configure(
        application_name="shop",
        server_address=sys.argv[1],
        sample_rate=100,
        oncpu=True,
        gil_only=True,
        tags={"region": "eu"},
    )
    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    provider.add_span_processor(PyroscopeSpanProcessor())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def work() -> str:
    """What a request does: 60 ms of CPU time, some of it in a span of its own.

    More where a kernel that has much to do puts samples off, as far as the package tells.
    """
    taken = getattr(pyroscope, "stats", None)
    before = taken()["taken"]["samples"] if taken else 0
    with pyroscope.tag_wrapper({"tenant": "acme"}), trace.get_tracer("shop").start_as_current_span("inside"):
        end = time.thread_time() + 0.06
        while time.thread_time() < end or (taken and time.thread_time() < end + 2 and taken()["taken"]["samples"] == before):
            sum(range(200))
    return "done"


def ask(port: int) -> None:
    """Asks the service that listens, shuts the profiler down, and prints each request's span and profile id."""
    for _ in range(8):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/work", timeout=20) as answer:
            assert b"done" in answer.read()
    pyroscope.shutdown()
    roots = [span for span in exporter.get_finished_spans() if span.kind is trace.SpanKind.SERVER]
    shown = [(format(span.context.span_id, "016x"), span.attributes.get("pyroscope.profile.id")) for span in roots]
    print(json.dumps(shown))
