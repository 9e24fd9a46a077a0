"""Traces and profiles of a service: what an application adds to be seen by span."""

import os

import pyroscope
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pyroscope.otel import PyroscopeSpanProcessor


def start(service: str) -> trace.Tracer:
    """Exports this process's spans and starts its profiler; processes forked later go on by themselves."""
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    # Sends to OTEL_EXPORTER_OTLP_ENDPOINT, else to port 4318 of this machine, where spanprof listens.
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    pyroscope.configure(
        application_name=service,
        server_address=os.environ.get("PYROSCOPE_SERVER_ADDRESS", "http://127.0.0.1:4040"),
        wall_time=True,
    )
    provider.add_span_processor(PyroscopeSpanProcessor(scope="all"))
    trace.set_tracer_provider(provider)
    return trace.get_tracer(service)


def stop() -> None:
    """Sends what is left. Python's atexit does the same where a server lets it."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.shutdown()
    pyroscope.shutdown()
