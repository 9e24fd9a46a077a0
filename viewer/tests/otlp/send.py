"""Sends a span by each of the SDK's OTLP exporters with their defaults: gRPC to port 4317, HTTP to port 4318.

The span says by an attribute how long it waited. Prints the trace ids, and fails if an exporter did not get its answer.
"""

import sys

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult


class Checked(SpanExporter):
    """Remembers how exports ended, which processors only log."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.exporter = exporter
        self.results: list[SpanExportResult] = []

    def export(self, spans: "list[ReadableSpan]") -> SpanExportResult:
        self.results.append(self.exporter.export(spans))
        return self.results[-1]

    def shutdown(self) -> None:
        self.exporter.shutdown()


for name, exporter in [("grpc", GrpcExporter()), ("http", HttpExporter())]:
    checked = Checked(exporter)
    provider = TracerProvider(resource=Resource.create({"service.name": f"sdk-{name}"}))
    provider.add_span_processor(SimpleSpanProcessor(checked))
    with provider.get_tracer("test").start_as_current_span(f"by {name}", attributes={"pyroscope.time.io": 7}) as span:
        print(f"{span.get_span_context().trace_id:032x}")
    provider.shutdown()
    if checked.results != [SpanExportResult.SUCCESS]:
        sys.exit(f"{name}: {checked.results}")
