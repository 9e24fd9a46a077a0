# frozen_string_literal: true

# What the profiler adds to the bare OpenTelemetry: attach + detach, a span of the SDK with our processor, a switch of
# fibers; and the objects that a pair of attach and detach makes.
#
#   ruby context_cost.rb [--pairs N]       prints JSON: nanoseconds for each kind and side, medians, and their differences
#
# The methods cannot be taken away again, so each block runs in a forked child, one with a profiler that runs and its span
# processor, one without either, and one with a processor that does nothing but set the attribute, in turn. Times are of the
# thread's CPU clock. The control is the same difference between neighbours without.
require_relative "program"
require "opentelemetry/sdk"
require "pyroscope-otel"

module ContextCost
  ROUNDS = 20_000
  KINDS = %i[attach_detach root_span child_span fiber_switch].freeze
  Context = OpenTelemetry::Context

  module_function

  def each_ns
    GC.start
    GC.disable
    began = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)
    yield
    (Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond) - began) / ROUNDS.to_f
  ensure
    GC.enable
  end

  # What the attribute takes by itself: in the SDK, which checks all of them at a span's end.
  class Attribute < OpenTelemetry::SDK::Trace::SpanProcessor
    def on_start(span, _parent_context)
      span.set_attribute(Pyroscope::Otel::SpanProcessor::PROFILE_ID, span.context.hex_span_id)
    end
  end

  def provider(with)
    OpenTelemetry::SDK::Trace::TracerProvider.new.tap do |made|
      case with
      when :attribute
        made.add_span_processor(Attribute.new)
      when :ours
        Pyroscope.configure(application_name: "cost", server_address: "none", log_level: "error") || raise("it does not run")
        made.add_span_processor(Pyroscope::Otel::SpanProcessor.new)
      end
    end
  end

  def measure(with)
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
    { attach_detach: each_ns(&pair), root_span: each_ns(&spans),
      child_span: tracer.in_span("root") { each_ns(&spans) }, fiber_switch: each_ns(&switch), objects: objects.round(3) }
  end

  def in_child(with)
    reader, writer = IO.pipe
    child = fork do
      writer.write(JSON.generate(measure(with)))
      writer.close
      exit!(0)
    end
    writer.close
    answer = reader.read
    Process.wait(child)
    raise "a child ended with #{$?}" unless $?.success?

    JSON.parse(answer, symbolize_names: true)
  end

  def run(pairs)
    bare, ours, attribute = [], [], []
    pairs.times { bare << in_child(nil); ours << in_child(:ours); attribute << in_child(:attribute) }
    rows = KINDS.to_h do |kind|
      over = ->(others) { Program.median(bare.zip(others).map { |without, with| with[kind] - without[kind] }) }
      control = bare.each_cons(2).map { |one, other| other[kind] - one[kind] }
      [kind, { bare: Program.median(bare.map { |each| each[kind] }), ours: Program.median(ours.map { |each| each[kind] }),
               added: over.(ours), attribute: over.(attribute), control: Program.median(control) }]
    end
    { pairs: pairs, objects: ours.last[:objects] - bare.last[:objects], **rows }
  end
end

Program.print(ContextCost.run(Program.options(pairs: 11)[:pairs]))
