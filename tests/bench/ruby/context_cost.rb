# frozen_string_literal: true

# What the context hooks cost over the bare OpenTelemetry: attach + detach, a span of the SDK, a switch of fibers; and the
# objects that a pair of attach and detach makes.
#
#   ruby context_cost.rb [--pairs N]       prints JSON: nanoseconds for each kind and side, medians, and their differences
#
# The methods cannot be taken away again, so each block runs in a forked child, one with them and one without, in turn. Times
# are of the thread's CPU clock. The control is the same difference between neighbours without.
require "json"
ENV["OTEL_TRACES_EXPORTER"] ||= "none"
require "opentelemetry/sdk"
$LOAD_PATH.unshift(File.expand_path("../../../bindings-ruby/lib", __dir__))
require "pyroscope_otel/native"

module ContextCost
  ROUNDS = 20_000
  KINDS = %i[attach_detach in_span in_child_span fiber_switch].freeze
  Context = OpenTelemetry::Context
  Native = Pyroscope::Native

  # The native part alone, as the span processor calls it.
  class Processor
    def on_start(span, context) = Native.span_started(span, context)
    def on_finish(span) = Native.span_finished(span)
    def force_flush(timeout: nil) = 0
    def shutdown(timeout: nil) = 0
  end

  module_function

  def provider(with)
    OpenTelemetry::SDK::Trace::TracerProvider.new.tap { |made| made.add_span_processor(Processor.new) if with }
  end

  def each_ns
    GC.start
    GC.disable
    began = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)
    yield
    (Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond) - began) / ROUNDS.to_f
  ensure
    GC.enable
  end

  def measure(with)
    if with
      Native.install_context_hooks
      Native.configure_spans(false, false)
    end
    tracer = provider(with).tracer("cost", "1")
    context = OpenTelemetry::Trace.context_with_span(tracer.start_span("span"))
    pair = -> { ROUNDS.times { Context.detach(Context.attach(context)) } }
    spans = -> { ROUNDS.times { tracer.in_span("span") { nil } } }
    fiber = Fiber.new { loop { Fiber.yield } }
    switch = -> { (ROUNDS / 2).times { fiber.resume } }
    [pair, spans, switch].each(&:call)
    before = GC.stat(:total_allocated_objects)
    pair.call
    objects = (GC.stat(:total_allocated_objects) - before) / ROUNDS.to_f
    { attach_detach: each_ns(&pair), in_span: each_ns(&spans),
      in_child_span: tracer.in_span("root") { each_ns(&spans) }, fiber_switch: each_ns(&switch), objects: objects.round(3) }
  end

  def in_child(with)
    reader, writer = IO.pipe
    child = fork do
      writer.write(JSON.generate(measure(with)))
      writer.close
      exit!(0)
    end
    writer.close
    JSON.parse(reader.read, symbolize_names: true).tap { Process.wait(child) }
  end

  def median(numbers) = numbers.sort[numbers.size / 2]

  def run(pairs)
    bare, ours = [], []
    pairs.times { bare << in_child(false); ours << in_child(true) }
    rows = KINDS.to_h do |kind|
      added = bare.zip(ours).map { |without, with| with[kind] - without[kind] }
      control = bare.each_cons(2).map { |one, other| other[kind] - one[kind] }
      [kind, { bare: median(bare.map { |each| each[kind] }).round(1), ours: median(ours.map { |each| each[kind] }).round(1),
               added: median(added).round(1), control: median(control).round(1) }]
    end
    { ruby: RUBY_DESCRIPTION, api: OpenTelemetry::VERSION, pairs: pairs, unit: "ns",
      objects: { bare: bare.last[:objects], ours: ours.last[:objects] }, **rows }
  end
end

pairs = ARGV[0] == "--pairs" ? Integer(ARGV[1]) : 11
puts JSON.generate(ContextCost.run(pairs))
