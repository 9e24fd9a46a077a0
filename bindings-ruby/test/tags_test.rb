# frozen_string_literal: true

require_relative "helper"

class TagsTest < Minitest::Test
  def test_a_block_returns_its_value_and_raises_its_errors
    assert_equal 7, Pyroscope.tag_wrapper({ kind: "x" }) { 7 }
    assert_raises(IOError) { Pyroscope.tag_wrapper({ kind: "x" }) { raise IOError } }
    assert_equal(8, catch(:out) { Pyroscope.tag_wrapper({ kind: "x" }) { throw :out, 8 } })
    assert_equal 0, Pyroscope::Native.current_tags
  end

  def test_blocks_nest_and_restore
    samples = samples_of(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: ARGV[0])
      def outer = burn_until_sampled
      def inner = burn_until_sampled
      def again = burn_until_sampled
      def none = burn_until_sampled
      Pyroscope.tag_wrapper({ a: 1, b: "outer" }) do
        outer
        begin
          Pyroscope.tag_wrapper({ b: "inner" }) { inner && raise("out of it") }
        rescue RuntimeError
          again
        end
      end
      none
    RUBY
    tags = samples.group_by { |sample| sample.functions.filter_map { |frame| frame[/#(outer|inner|again|none)\z/, 1] }.first }
    tags.transform_values! { |group| group.map { |sample| sample.labels.slice("a", "b") }.uniq }
    assert_equal [{ "a" => "1", "b" => "outer" }], tags["outer"]
    assert_equal [{ "a" => "1", "b" => "inner" }], tags["inner"]
    assert_equal [{ "a" => "1", "b" => "outer" }], tags["again"]
    assert_equal [{}], tags["none"]
  end

  def test_a_block_that_began_before_the_profiler
    samples = samples_of(<<~'RUBY')
      def inner = burn_until_sampled
      def none = burn_until_sampled
      Pyroscope.tag_wrapper({ a: "early" }) do
        Pyroscope.configure(application_name: "app", server_address: ARGV[0])
        inner
      end
      none
    RUBY
    tags = samples.group_by { |sample| sample.functions.filter_map { |frame| frame[/#(inner|none)\z/, 1] }.first }
    tags.transform_values! { |group| group.map { |sample| sample.labels.slice("a") }.uniq }
    assert_equal [{ "a" => "early" }], tags["inner"]
    assert_equal [{}], tags["none"]
  end

  def test_tags_follow_fibers
    samples = samples_of(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: ARGV[0])
      def red = burn_until_sampled
      def blue = burn_until_sampled
      def main = burn_until_sampled
      fibers = { red: method(:red), blue: method(:blue) }.map do |tag, work|
        Fiber.new { Pyroscope.tag_wrapper({ kind: tag }) { 5.times { work.call && Fiber.yield } } }
      end
      5.times do
        fibers.each(&:resume)
        main
      end
    RUBY
    wrong = samples.reject do |sample|
      name = sample.functions.filter_map { |frame| frame[/#(red|blue|main)\z/, 1] }.first
      name.nil? || sample.labels["kind"] == { "red" => "red", "blue" => "blue" }[name]
    end
    assert_empty wrong
    %w[red blue].each { |kind| assert_operator weight(samples) { |sample| sample.labels["kind"] == kind }, :>, 0 }
  end

  def test_fibers_that_never_come_to_the_end_of_their_block_give_their_tags_back
    assert_ruby(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: "none")
      2.times do |round|
        600.times { |number| Fiber.new { Pyroscope.tag_wrapper({ kind: "#{round} #{number}" }) { Fiber.yield } }.resume }
        GC.start
        3.times { Pyroscope.flush }
      end
      abort "#{Pyroscope.stats[:tag_sets_lost]} lost" unless Pyroscope.stats[:tag_sets_lost].zero?
      1_100.times.map { |number| Fiber.new { Pyroscope.tag_wrapper({ kind: number }) { Fiber.yield } }.tap(&:resume) }
      abort "none lost" unless Pyroscope.stats[:tag_sets_lost].positive?
    RUBY
  end

  def test_a_block_runs_where_there_can_be_no_tags
    said = assert_ruby(<<~'RUBY', options: ["-W0"])
      Pyroscope.configure(application_name: "app", server_address: "none")
      tagged = -> { Pyroscope.tag_wrapper({ kind: "x" }) { Pyroscope::Native.current_tags } }
      p Thread.new { Thread.current.freeze && tagged.call.positive? }.value
      p Fiber.new { Fiber.current.freeze && tagged.call }.resume
      p Ractor.new { Pyroscope.tag_wrapper({ kind: "x" }) { [Pyroscope.running?, Pyroscope.stats.key?(:taken)] } }.take
    RUBY
    assert_equal ["true", "0", "[true, true]"], said.lines(chomp: true)
  end

  def test_nothing_of_ours_is_seen_in_the_programs_objects
    said = assert_ruby(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: "none")
      tracer(Pyroscope::Otel::SpanProcessor.new(inherit_fibers: true)).in_span("span") do |span|
        fiber = Fiber.new { Pyroscope.tag_wrapper({ kind: "x" }) { puts (Thread.current.keys + Fiber.current.instance_variables).grep(/pyro/).inspect } }
        fiber.resume
        puts span.instance_variables.grep(/pyro/).inspect
      end
    RUBY
    assert_equal %w[[] []], said.split
  end

  def test_what_interrupts_the_logger_is_the_programs_and_leaves_no_tags
    said = assert_ruby(<<~'RUBY')
      late = Class.new(StandardError)
      Pyroscope.configure(application_name: "app", server_address: "none")
      # As Timeout does: raised in the thread from outside, while it is in the logger.
      Pyroscope.logger = Object.new.tap { |logger| logger.define_singleton_method(:add) { |*| Thread.current.raise(late) } }
      begin
        Pyroscope.tag_wrapper({ "not allowed" => 1, "kind" => 1 }) { puts "ran" }
      rescue late
        puts "interrupted"
      end
      puts Pyroscope::Native.current_tags
    RUBY
    assert_equal %w[interrupted 0], said.split
  end

  # Ruby looks for interrupts (Timeout, Thread#raise) wherever a call begins or returns.
  def test_wherever_a_block_is_interrupted_no_tags_stay
    said = assert_ruby(<<~'RUBY')
      late = Class.new(StandardError)
      events = %i[c_call c_return call return b_call b_return]
      Pyroscope.configure(application_name: "app", server_address: "none")
      interrupted = (1..200).count do |instant|
        seen = 0
        interrupt = TracePoint.new(*events) { raise late if (seen += 1) == instant }
        begin
          interrupt.enable { Pyroscope.tag_wrapper({ kind: 1 }) { Pyroscope.tag_wrapper({ kind: 2 }) { 3 } } }
          false
        rescue late
          interrupt.disable
          abort "after #{instant} events: #{$!.backtrace.first}" unless Pyroscope::Native.current_tags.zero?
          true
        end
      end
      p interrupted
    RUBY
    assert_operator Integer(said), :>, 20
  end

  def test_tags_of_a_thread_in_both_arities
    samples = samples_of(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: ARGV[0])
      def one = burn_until_sampled
      def two = burn_until_sampled
      def none = burn_until_sampled
      Pyroscope._add_tags({ "a" => "1" })
      one
      Pyroscope._add_tags(Pyroscope.thread_id, { "b" => "2" })
      two
      Pyroscope._remove_tags(Pyroscope.thread_id, { "b" => "2" })
      Pyroscope._remove_tags({ "a" => "1" })
      none
    RUBY
    tags = samples.group_by { |sample| sample.functions.filter_map { |frame| frame[/#(one|two|none)\z/, 1] }.first }
    tags.transform_values! { |group| group.map { |sample| sample.labels.slice("a", "b") }.uniq }
    assert_equal [{ "a" => "1" }], tags["one"]
    assert_equal [{ "a" => "1", "b" => "2" }], tags["two"]
    assert_equal [{}], tags["none"]
  end

  def test_a_name_that_is_not_allowed_is_left_out_and_told_once
    said = assert_ruby(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: "none")
      2.times { Pyroscope.tag_wrapper({ "a b" => 1, "span_id" => 2 }) { puts "ran" } }
    RUBY
    assert_equal 2, said.scan("ran").size
    assert_equal 1, said.scan("a b").size, said
    assert_equal 1, said.scan("tag_wrapper: span_id").size, said
    assert_includes said, "the tag is left out"
  end

  def test_any_number_of_values_one_after_the_other_has_room
    assert_ruby(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: "none", upload_interval: 1)
      500.times { |number| Pyroscope.tag_wrapper({ kind: number }) { nil } }
      abort "#{Pyroscope.stats[:tag_sets_lost]} lost" unless Pyroscope.stats[:tag_sets_lost].zero?
    RUBY
  end

  def test_deprecated_names_warn_where_ruby_is_told_to
    said = run_ruby(<<~'RUBY', options: ["-W:deprecated"])
      Pyroscope.tag({ a: 1 })
      Pyroscope.remove_tags("a")
    RUBY
    assert_equal ["-e:1: warning: Pyroscope.tag has no effect, use Pyroscope.tag_wrapper",
                  "-e:2: warning: Pyroscope.remove_tags has no effect, use Pyroscope.tag_wrapper"], said.errors.lines(chomp: true)
  end
end
