# frozen_string_literal: true

require "pyroscope-otel"
require_relative "../../../tests/support/ruby/waiting"
OpenTelemetry.logger = Logger.new($stdout, formatter: ->(level, _time, name, text) { "#{level} #{name}: #{text}\n" })

# Burns this much CPU time of the calling thread, in milliseconds. True.
def burn(milliseconds)
  clock = Process::CLOCK_THREAD_CPUTIME_ID
  until_then = Process.clock_gettime(clock) + (milliseconds / 1000.0)
  nil while Process.clock_gettime(clock) < until_then
  true
end

# Burns CPU time in the calling thread until the profiler has samples of it, however late they come: where programs compete
# for the processors, Linux looks at the timers of a thread's CPU time once in 100 ms of it. True.
def burn_until_sampled
  samples = -> { Pyroscope.stats[:taken][:samples] }
  enough = samples.call + 3
  deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 60
  until samples.call >= enough
    raise "no samples: #{Pyroscope.stats}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline

    burn(5)
  end
  true
end

# A tracer of a provider with our processor.
def tracer(processor = Pyroscope::Otel::SpanProcessor.new, resource: {})
  provider = OpenTelemetry::SDK::Trace::TracerProvider.new(resource: OpenTelemetry::SDK::Resources::Resource.create(resource))
  provider.add_span_processor(processor)
  provider.tracer("test")
end
