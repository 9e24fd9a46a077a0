# frozen_string_literal: true

# What spans leave behind in memory: the resident size of a process after many of them.
#
#   ruby memory.rb names|elsewhere --with us|nothing [--spans N]       prints JSON: MiB after a tenth, half, and all of them
#
#   names       spans with distinct names, one after the other
#   elsewhere   spans that one thread starts and makes current, and another ends
#
# With us: the profiler and its span processor. Memory that grows with the number of spans shows between half and all, what
# the profiler needs in itself shows in all of them.
require_relative "program"
require "opentelemetry/sdk"
require "pyroscope-otel"

kind = ARGV.fetch(0)
options = Program.options(with: "us", spans: 100_000)
spans = options[:spans]
provider = OpenTelemetry::SDK::Trace::TracerProvider.new
if options[:with] == "us"
  Pyroscope.configure(application_name: "memory", server_address: "none", log_level: "error") || raise("it does not run")
  provider.add_span_processor(Pyroscope::Otel::SpanProcessor.new)
end
tracer = provider.tracer("memory")
marks = { spans / 10 => :tenth, spans / 2 => :half, spans => :all }
found = {}

case kind
when "names"
  spans.times do |number|
    tracer.in_span("GET /item/#{number}") { nil }
    found[marks[number + 1]] = Program.resident_mib if marks.key?(number + 1)
  end
when "elsewhere"
  started = SizedQueue.new(100)
  done = Queue.new
  ends = Thread.new do
    while (span = started.pop)
      OpenTelemetry::Trace.with_span(span) { span.finish }
      done << true
    end
  end
  spans.times do |number|
    span = tracer.start_span("job #{number}")
    OpenTelemetry::Trace.with_span(span) { started << span }
    next unless ((number + 1) % 100).zero?

    100.times { done.pop }
    found[marks[number + 1]] = Program.resident_mib if marks.key?(number + 1)
  end
  started << nil
  ends.join
else
  raise ArgumentError, "#{kind} is not allowed; allowed: names, elsewhere"
end
Program.print({ **found, samples: options[:with] == "us" ? Pyroscope.stats[:taken][:samples] : 0 })
