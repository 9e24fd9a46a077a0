# frozen_string_literal: true

module Pyroscope
  module Otel
    # What the time of a span went to, as attributes of the span.
    #
    # The sums are whole when a span ends. SDKs call on_finishing then, with the span's lock held, for which set_attribute would
    # wait; older ones call on_finish alone, where nothing can be set any more. So they are put where the SDK keeps attributes: in a
    # new Hash in place of the old one, as an exporter's thread may be reading that.
    module Times
      # Whether the SDK tells of a span's end before any exporter sees the span.
      HAS_ON_FINISHING = OpenTelemetry::SDK::Trace::SpanProcessor.method_defined?(:on_finishing)

      # The span ends.
      def self.set_attributes(span)
        times = Native.span_times(span, span.end_timestamp - span.start_timestamp)
        return if times.nil? || times.empty?

        old = span.instance_variable_get(:@attributes) || {}
        most = span.instance_variable_get(:@span_limits).attribute_count_limit
        # The program's own come first.
        added = times.except(*old.keys).first([most - old.size, 0].max).to_h
        total = span.instance_variable_get(:@total_recorded_attributes)
        span.instance_variable_set(:@total_recorded_attributes, total + times.size)
        merged = old.merge(added)
        span.instance_variable_set(:@attributes, old.frozen? ? merged.freeze : merged)
      end
    end
  end
end
