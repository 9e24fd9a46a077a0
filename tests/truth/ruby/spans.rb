# frozen_string_literal: true

# For programs that native tests run: OpenTelemetry with the native part alone, spans with a method each, and the judgement
# of whole profiles. SCOPE is all or root; API names a version of opentelemetry-api.
gem "opentelemetry-api", ENV["API"] if ENV["API"]
require "pyroscope_otel/native"
require "opentelemetry/sdk"
require "json"
require "tmpdir"
require "fileutils"
require_relative "../../support/ruby/profile"

OpenTelemetry.logger = Logger.new(File::NULL)
Native = Pyroscope::Native
Context = OpenTelemetry::Context
Trace = OpenTelemetry::Trace
$stdout.sync = true

class Processor
  def on_start(span, context) = Native.span_started(span, context)
  def on_finish(span) = Native.span_finished(span)
  def on_finishing(_span) = nil
  def force_flush(timeout: nil) = 0
  def shutdown(timeout: nil) = 0
end

module Spans
  SCOPE_ALL = ENV.fetch("SCOPE", "all") == "all"
  TRACER = OpenTelemetry::SDK::Trace::TracerProvider.new.tap { |provider| provider.add_span_processor(Processor.new) }.tracer("test", "1")
  LOCK = Mutex.new
  METHODS = 4_000
  METHODS.times { |number| eval("def self.span_#{number} = yield", binding, __FILE__, __LINE__) }

  @next = 0
  @truth = {}
  @checks = Hash.new(0)
  @wrong = []

  class << self
    attr_reader :checks, :wrong

    # A span that runs `span_N`; CPU of the block is burnt in that method. `root`: its local root, if it is not one itself.
    def run(root = nil, kind: nil)
      TRACER.in_span("span #{kind}") do |span|
        root ||= span
        check
        inside(SCOPE_ALL ? span : root) { yield span, root }
      ensure
        check
      end
    end

    # Runs the block in a method of its own, whose CPU belongs to `span`.
    def inside(span, &block)
      number = LOCK.synchronize { @truth[@next] = span&.context&.hex_span_id; (@next += 1) - 1 }
      raise "more methods" if number >= METHODS

      send("span_#{number}", &block)
    end

    # Whether the slot says what OpenTelemetry says. Local roots are looked up by what the native part notes on the span.
    def check
      current = Trace.current_span
      carried = Native.carried(current)
      expected = carried&.context&.hex_span_id
      expected = @untraced.context.hex_span_id if @untraced
      found = Native.current_span&.first
      LOCK.synchronize { found == expected ? @checks[:right] += 1 : @wrong << "#{found.inspect} instead of #{expected.inspect} at #{caller(1, 3).join(" < ")}" }
    end

    def untraced(span)
      @untraced = SCOPE_ALL ? span : Native.carried(span)
      yield
    ensure
      @untraced = nil
    end

    # Samples taken while `busy` ran, against the innermost method of a span on their stack; [right, wrong, texts of wrong].
    def judge(samples)
      right = wrong = 0
      texts = []
      samples.each do |sample|
        next unless sample.functions.any? { |name| name.end_with?("busy") }

        number = sample.functions.filter_map { |name| name[/span_(\d+)\z/, 1] }.first&.to_i
        if sample.span_id == (number && @truth.fetch(number))
          right += sample.weight
        else
          wrong += sample.weight
          texts << "#{sample.labels} for #{@truth[number].inspect}: #{sample.functions.first(8).join(" < ")}"
        end
      end
      [right, wrong, texts]
    end
  end
end

def busy(milliseconds)
  began = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)
  number = burnt = 0
  while burnt < milliseconds * 1_000_000
    30.times { number += 1 }
    burnt = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond) - began
  end
  burnt
end

# Nanoseconds that the block takes.
def wall_ns
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
  yield
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - began
end

def check = Spans.check
def span(...) = Spans.run(...)

# Profiles the block into a folder; returns its samples. With `wall_clock: true` threads are interrupted by wall time, which
# their samples weigh, so each part of the block has its share. By CPU time, a thread that competes for the processors may
# have one signal for 100 ms of it, wherever it is by then.
def profiled(**options)
  Dir.mktmpdir do |folder|
    running = Native.start({ application_name: "test", server_address: "file://#{folder}", sample_rate: 1000, **options })
    raise "not running: #{Native.messages}" unless running

    begin
      yield
    ensure
      stopped = Native.stop(20.0)
    end
    raise "not stopped: #{Native.stats}" unless stopped

    Profile.of_folder(folder)
  end
end
