# frozen_string_literal: true

# Does what programs do with spans, and prints what was wrong as JSON: at checkpoints, and in the profile of it all.
require_relative "spans"
require "json"
require "timeout"

OTEL_CONTEXT = Context
FEW = 5
LEFT_OUT = []

def self.scenario(name)
  return if ENV["ONLY"] && !name.include?(ENV["ONLY"])

  before = Spans.wrong.size
  yield
  Native.flush(5.0) if ENV["EACH"]
  warn "#{name}: #{Spans.wrong[before..].first(2).join("\n  ")}" if Spans.wrong.size > before
rescue StandardError => error
  Spans.wrong << "#{name}: #{error.full_message}"
end

def all
  scenario("one thread") { 20.times { span { busy 4 } } }
  scenario("short spans") { 400.times { span { busy 0.2 } } }
  scenario("nested") { 10.times { span { |_, root| busy 2; span(root) { busy 2; span(root) { busy 2 }; busy 2 }; busy 2 } } }
  scenario("outside") { busy 60 }
  scenario("threads") { 8.times.map { Thread.new { check; FEW.times { span { busy 4 } }; busy 3; check } }.each(&:join) }
  scenario("threads that sleep in spans") do
    20.times.map { Thread.new { span { 8.times { busy 0.7; sleep 0.001; check } } } }.each(&:join)
  end
  scenario("pool with a context that is passed on") do
    queue = Queue.new
    pool = 4.times.map do
      Thread.new do
        while (context, owner = queue.pop)
          OTEL_CONTEXT.with_current(context) do
            check
            Spans.inside(owner) { busy 3 }
            span(owner) { busy 2 }
            check
          end
          check
        end
      end
    end
    12.times { span { |own, _| queue << [OTEL_CONTEXT.current, own]; busy 2 } }
    queue.close
    pool.each(&:join)
  end
  scenario("exceptions and throw") do
    FEW.times do
      span do |_, root|
        catch(:out) { span(root) { busy 2; throw :out } }
        check
        busy 2
        span(root) { busy 2; raise "out" }
      end
    rescue RuntimeError
      check
      busy 2
    end
  end
  scenario("break, next and return out of a span") do
    def self.returning = [1].each { span { busy 2; return 5 } }
    FEW.times { returning; check; [1].each { span { busy 2; break } }; [1].each { span { busy 2; next } }; check; busy 1 }
  end
  scenario("detached out of order") do
    first, second = Array.new(2) { Spans::TRACER.start_span("by hand") }
    one = OTEL_CONTEXT.attach(Trace.context_with_span(first))
    two = OTEL_CONTEXT.attach(Trace.context_with_span(second))
    check
    Spans.inside(second) { busy 5 }
    OTEL_CONTEXT.detach(one)
    check
    OTEL_CONTEXT.detach(two)
    check
    OTEL_CONTEXT.clear
    check
    Spans.inside(nil) { busy 5 }
  end
  scenario("started and never current") { Spans::TRACER.start_span("never"); check; Spans.inside(nil) { busy 5 } }
  scenario("finished by another thread") do
    FEW.times { span { inner = Spans::TRACER.start_span("inner"); Thread.new { inner.finish }.join; check; busy 2 } }
  end
  scenario("finished and still current") { span { |own, _| own.finish; check; busy 5 } }
  scenario("cleared") { span { busy 2; OTEL_CONTEXT.clear; check; Spans.inside(nil) { busy 5 } }; check }
  scenario("remote parent") do
    [true, false].each do |sampled|
      flags = sampled ? Trace::TraceFlags::SAMPLED : Trace::TraceFlags::DEFAULT
      parent = Trace.non_recording_span(Trace::SpanContext.new(remote: true, trace_flags: flags))
      Trace.with_span(parent) do
        check
        Spans.inside(nil) { busy 3 }
        sampled ? span { |_, root| busy 2; span(root) { busy 2 } } : Spans::TRACER.in_span("unsampled") { check; Spans.inside(nil) { busy 2 } }
      end
    end
  end
  scenario("untraced") do
    span do |own, _|
      OpenTelemetry::Common::Utilities.untraced { Spans.untraced(own) { Spans::TRACER.in_span("not recorded") { check; busy 3 } } }
      check
      busy 2
    end
  end
  scenario("values in the context") do
    key = OTEL_CONTEXT.create_key("key")
    many = Array.new(12) { |number| OTEL_CONTEXT.create_key("k#{number}") }
    span do |_, root|
      OTEL_CONTEXT.with_value(key, 1) { check; busy 3; span(root) { busy 2 }; check }
      OTEL_CONTEXT.with_values(many.to_h { |each| [each, 1] }) { check; busy 3; span(root) { busy 2 }; check }
    end
  end
  scenario("fibers") do
    fibers = Array.new(6) do
      Fiber.new do
        check
        Spans.inside(nil) { busy 1 }
        span { busy 2; Fiber.yield; check; busy 2; begin; Fiber.yield; rescue RuntimeError; check; busy 2; end }
        check
      end
    end
    span do
      fibers.each { |fiber| fiber.resume; check; busy 1 }
      fibers.each { |fiber| fiber.resume; check }
      fibers.each { |fiber| fiber.raise("in"); check }
    end
    main = Fiber.current
    other = Fiber.new { span { busy 2; main.transfer; check; busy 2 }; main.transfer }
    span { other.transfer; check; busy 2; other.transfer; check }
  end
  scenario("enumerators") do
    span do
      numbers = Enumerator.new { |yielder| FEW.times { |number| check; span { busy 1; yielder << number; check; busy 1 } } }
      FEW.times { numbers.next; check; busy 1 }
      [1, 2].each.zip([3].each)
      (1..3).lazy.map { |number| number }.first(2)
      check
    end
  end
  scenario("raise, timeout and kill") do
    FEW.times { begin; Timeout.timeout(0.01) { span { busy 1_000 } }; rescue Timeout::Error; check; end }
    FEW.times do |number|
      thread = Thread.new { span { busy 1_000 } }
      thread.report_on_exception = false
      Thread.pass until thread.stop? || thread.status == "run"
      number.odd? ? thread.kill : thread.raise("out")
      begin; thread.join; rescue RuntimeError; check; end
    end
  end
  scenario("forks") do
    span do |own, _|
      reader, writer = IO.pipe
      child = fork do
        Native.after_fork
        check
        writer.write(Spans.wrong.last.to_s)
        writer.close
        exit!(0)
      end
      writer.close
      said = reader.read
      Process.wait(child)
      Spans.wrong << "in a child: #{said}" unless said == Spans.wrong.last.to_s
      check
      busy 2
      own
    end
  end
  begin
    require "async"
    require "async/barrier"
    scenario("async") do
      Sync do |top|
        tasks = 50.times.map do
          top.async { span { |_, root| busy 0.5; sleep 0.002; check; busy 0.5; span(root) { sleep 0.001; busy 0.5; check }; check } }
        end
        tasks.each(&:wait)
      end
    end
    scenario("async with a context that is passed on") do
      span do |own, _|
        context = OTEL_CONTEXT.current
        Sync do
          barrier = Async::Barrier.new
          20.times do
            barrier.async do
              OTEL_CONTEXT.with_current(context) { check; Spans.inside(own) { busy 0.5; Async::Task.current.yield; check; busy 0.5 } }
              check
            end
          end
          barrier.wait
        end
      end
    end
  rescue LoadError
    LEFT_OUT << "the scenarios of the gem async, which is not there"
  end
  if defined?(Ractor) && ENV["RACTOR"]
    scenario("ractors") do
      Warning[:experimental] = false
      span { ractor = Ractor.new { 50_000.times { |number| number.to_s } }; ractor.respond_to?(:take) ? ractor.take : ractor.value; check; busy 2 }
    end
  end
end

Native.install_context_hooks
Native.configure_spans(Spans::SCOPE_ALL, false)
samples = profiled { ENV.fetch("TIMES", 1).to_i.times { all } }
right, wrong, texts = Spans.judge(samples)
stats = Native.stats
puts JSON.generate(checks: Spans.checks[:right], wrong_checks: Spans.wrong.size, right: right, wrong: wrong, texts: (Spans.wrong + texts).first(8),
                   samples: samples.size, taken: stats[:taken][:samples], uploaded: stats[:uploaded][:samples],
                   dropped: stats[:dropped_ring][:samples], unreadable: stats[:stacks_unreadable], unresolved: stats[:frames_unresolved],
                   left_out: LEFT_OUT.uniq, api: OpenTelemetry::VERSION, ruby: RUBY_DESCRIPTION)
