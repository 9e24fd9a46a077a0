# frozen_string_literal: true

require "opentelemetry/sdk"
require "opentelemetry-exporter-otlp"
require "opentelemetry-instrumentation-net_http"
require "opentelemetry-instrumentation-rack"
require "opentelemetry-instrumentation-sinatra"
require "pyroscope-otel"

# Traces and profiles of a service: what an application adds to be seen by span.
module Telemetry
  # Exports this process's spans, to OTEL_EXPORTER_OTLP_ENDPOINT or port 4318 of this machine, and starts its profiler;
  # processes forked later go on by themselves.
  def self.start(service)
    Pyroscope.configure do |config|
      config.application_name = service
      config.server_address = ENV.fetch("PYROSCOPE_SERVER_ADDRESS", "http://127.0.0.1:4040")
    end
    OpenTelemetry::SDK.configure do |sdk|
      sdk.service_name = service
      sdk.use_all
      exporter = OpenTelemetry::Exporter::OTLP::Exporter.new
      sdk.add_span_processor(OpenTelemetry::SDK::Trace::Export::BatchSpanProcessor.new(exporter))
      sdk.add_span_processor(Pyroscope::Otel::SpanProcessor.new(scope: :all))
    end
    # The SDK does not do so by itself. The profiler does.
    at_exit { OpenTelemetry.tracer_provider.shutdown }
    OpenTelemetry.tracer_provider.tracer(service)
  end
end
