# frozen_string_literal: true

# In the place of the gem, which the tests do not need: the documents' programs run without a server.
require "opentelemetry-sdk"

module OpenTelemetry
  module Exporter
    module OTLP
      Exporter = SDK::Trace::Export::InMemorySpanExporter
    end
  end
end
