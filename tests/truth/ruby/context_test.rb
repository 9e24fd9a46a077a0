# frozen_string_literal: true

require_relative "native_helper"

# The slot is OpenTelemetry's current span at each checkpoint of what programs do, and no sample of the profile of it all
# carries another span than the one whose method runs.
class ContextTest < NativeTest
  def assert_scenarios(options, **environment)
    result = result_of(File.join(__dir__, "scenarios.rb"), options: options, environment: environment.transform_keys(&:to_s))
    puts "#{RUBY_VERSION}: left out: #{result[:left_out].join}" if result[:left_out].any?
    assert_empty result[:texts]
    assert_equal [0, 0], result.values_at(:wrong_checks, :wrong)
    assert_operator result[:checks], :>, 1_000
    assert_operator result[:right], :>, 700_000_000
    assert_equal result[:taken], result[:uploaded] + result[:dropped]
    assert_equal 0, result[:unresolved]
  end

  each_mode("every_span") { |options| assert_scenarios(options, SCOPE: "all") }

  def test_local_roots
    assert_scenarios([], SCOPE: "root")
  end

  if RUBY_VERSION >= "3.3"
    def test_shared_native_threads
      assert_scenarios(["--yjit"], SCOPE: "root", RUBY_MN_THREADS: "1")
    end
  end

  def test_ractors
    assert_scenarios([], SCOPE: "all", RACTOR: "1")
  end

  def test_a_span_that_is_not_utf8_has_a_name
    output = run_program(<<~RUBY)
      Native.install_context_hooks
      Native.configure_spans(true, false)
      names = ["caf\\xE9".b, "nul\\0in", "x" * 300, "K\\u00f6ln"]
      samples = profiled(sample_rate: 200, wall_clock: true) { names.each { |name| Spans::TRACER.in_span(name) { busy 20 } } }
      puts JSON.generate(samples.filter_map { |sample| sample.labels["span_name"] }.uniq.sort)
    RUBY
    assert_equal ["K\u00f6ln", "caf\uFFFD", "nul\0in", "x" * 256], JSON.parse(output)
  end

  def test_a_renamed_span_has_its_last_name
    output = run_program(<<~RUBY)
      Native.install_context_hooks
      Native.configure_spans(false, false)
      samples = profiled(sample_rate: 200, wall_clock: true) { Spans::TRACER.in_span("before") { |span| busy 50; span.name = "after"; busy 5 } }
      puts samples.filter_map { |sample| sample.labels["span_name"] }.uniq
    RUBY
    assert_equal "after\n", output
  end

  def test_fibers_inherit_where_that_is_asked_for
    output = run_program(<<~RUBY)
      Native.install_context_hooks
      Native.configure_spans(true, true)
      now = -> { Native.current_span&.first }
      seen = {}
      samples = profiled do
        fiber = Spans::TRACER.in_span("maker") do |span|
          seen[:maker] = span.context.hex_span_id
          numbers = Enumerator.new { |yielder| seen[:generator] = now.call; yielder << 1; yielder << 2 }
          numbers.next
          Fiber.new do
            seen[:made] = now.call
            Fiber.new { seen[:made_in_made] = now.call }.resume
            Fiber.yield
            seen[:again] = now.call
            Spans::TRACER.in_span("own") { |own| seen[:own] = now.call == own.context.hex_span_id }
          end
        end
        seen[:outside] = now.call
        Fiber.new { seen[:outside_made] = now.call }.resume
        Spans::TRACER.in_span("other") { |other| fiber.resume; seen[:other] = now.call == other.context.hex_span_id }
        fiber.resume
        seen[:end] = now.call
      end
      maker = seen.delete(:maker)
      puts JSON.generate(seen.transform_values { |value| value == maker ? "maker" : value })
    RUBY
    expected = { generator: "maker", made: "maker", made_in_made: "maker", again: "maker", own: true, outside: nil,
                 outside_made: nil, other: true, end: nil }
    assert_equal expected, JSON.parse(output, symbolize_names: true)
  end

  def test_what_fibers_are_made_with_is_passed_on_where_they_inherit
    output = run_program(<<~RUBY, options: ["-W0"])
      Native.install_context_hooks
      Native.configure_spans(true, true)
      p Fiber.new(blocking: true) { Fiber.current.blocking? }.resume
      p Fiber.new(blocking: false) { Fiber.current.blocking? }.resume
      p RUBY_VERSION < "3.2" ? 1 : Fiber.new(storage: { a: 1 }) { Fiber[:a] }.resume
      p((Fiber.new(foo: 1) { nil } rescue $!.class), (Fiber.new rescue $!.class))
      p Ractor.new { Fiber.new { 2 }.resume }.take
    RUBY
    assert_equal %w[true false 1 ArgumentError ArgumentError 2], output.split
  end

  def test_removed_hooks_follow_nothing_and_come_back
    output = run_program(<<~RUBY)
      Native.install_context_hooks
      Native.configure_spans(true, false)
      seen = []
      Spans::TRACER.in_span("one") { seen << !Native.current_span.nil?; Native.remove_hooks; seen << Native.current_span }
      Spans::TRACER.in_span("two") { seen << Native.current_span }
      Spans::TRACER.in_span("three") { Native.install_context_hooks; Native.install_context_hooks; seen << !Native.current_span.nil? }
      seen << Native.current_span
      seen << (OpenTelemetry::Context.singleton_class.ancestors.count { |each| each.name == "Pyroscope::Native::ContextHooks" })
      puts JSON.generate(seen)
    RUBY
    assert_equal [true, nil, nil, true, nil, 1], JSON.parse(output)
  end
end
