# frozen_string_literal: true

# A program that is profiled while its server misbehaves; see ../README.md for what a client does in any language.

require "json"
require "logger"
require "stringio"
require "opentelemetry/sdk"
require "pyroscope/otel"

PATIENCE = Float(ARGV.fetch(0))

# Seconds in which this thread neither ran nor waited for a processor: /proc says how long it did either.
def neither_ran_nor_could
  ran, waited, = File.read("/proc/thread-self/schedstat").split.map(&:to_i)
  Process.clock_gettime(Process::CLOCK_MONOTONIC) - ((ran + waited) / 1e9)
end

# 100 ms of CPU in 100 spans.
def app(tracer, half)
  before = neither_ran_nor_could
  100.times do |number|
    half << true if number == 50
    tracer.in_span("work") do
      stop = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) + 0.001
      (1..100).sum { |term| term * term } while Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) < stop
    end
  end
  neither_ran_nor_could - before
end

log = StringIO.new
Pyroscope.logger = Logger.new(log)
provider = OpenTelemetry::SDK::Trace::TracerProvider.new
provider.add_span_processor(Pyroscope::Otel::SpanProcessor.new)
tracer = provider.tracer("faults")
raise "not started" unless Pyroscope.configure

blocked = Array.new(2) do
  half = Queue.new
  thread = Thread.new { app(tracer, half) }
  half.pop
  # It must not matter to the app that somebody waits for a bad server.
  Pyroscope.flush(0.15)
  thread.value.tap { Pyroscope.flush(PATIENCE) }
end
since = Process.clock_gettime(Process::CLOCK_MONOTONIC)
Pyroscope.stop
stopped_in = Process.clock_gettime(Process::CLOCK_MONOTONIC) - since
puts JSON.generate(stats: Pyroscope.stats, messages: log.string.lines, blocked: blocked.max, stopped_in:)
