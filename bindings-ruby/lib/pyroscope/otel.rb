# frozen_string_literal: true

require_relative "../pyroscope"
require_relative "otel/span_processor"

module Pyroscope
  # A flame graph for each OpenTelemetry span.
  module Otel
    # The version of this gem.
    VERSION = Pyroscope::VERSION
    # What Grafana's gem calls its errors; nothing here raises one.
    Error = Class.new(StandardError)
  end
end
