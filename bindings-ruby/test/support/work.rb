# frozen_string_literal: true

require "pyroscope-otel"
OpenTelemetry.logger = Logger.new($stdout, formatter: ->(level, _time, name, text) { "#{level} #{name}: #{text}\n" })

# Burns this much CPU time of the calling thread, in milliseconds. True.
def burn(milliseconds)
  clock = Process::CLOCK_THREAD_CPUTIME_ID
  until_then = Process.clock_gettime(clock) + (milliseconds / 1000.0)
  nil while Process.clock_gettime(clock) < until_then
  true
end

# A tracer of a provider with our processor.
def tracer(processor = Pyroscope::Otel::SpanProcessor.new, resource: {})
  provider = OpenTelemetry::SDK::Trace::TracerProvider.new(resource: OpenTelemetry::SDK::Resources::Resource.create(resource))
  provider.add_span_processor(processor)
  provider.tracer("test")
end
