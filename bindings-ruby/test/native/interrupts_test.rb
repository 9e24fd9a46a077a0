# frozen_string_literal: true

require_relative "../../../tests/truth/ruby/native_helper"

# Threads that are ended or interrupted while they are in a method of ours.
class InterruptsTest < NativeTest
  def test_a_thread_that_is_killed_while_an_error_of_ours_is_made_ends_and_nothing_else
    output = run_program(<<~'RUBY')
      class ArgumentError
        def initialize(*) = Thread.current[:exits] ? Thread.exit : super
      end
      wrong = [{ sample_rate: "x" }, { tags: { 1 => "x" } }, { tags: 5 }, { basic_auth_password: 5 }, { server_address: "ftp://x" }]
      ended = wrong.map do |options|
        thread = Thread.new do
          Thread.current[:exits] = true
          Native.start({ application_name: "test", server_address: "none", **options })
        ensure
          Thread.current[:exits] = false
        end
        thread.join && thread.status
      end
      p ended, Native.running?
    RUBY
    assert_equal "[false, false, false, false, false]\nfalse\n", output
  end

  # Where `inspect` or `to_str` ended the thread, that was forgotten, and nobody could end it any more.
  def test_no_code_of_a_foreign_value_runs
    output = run_program(<<~'RUBY')
      foreign = Class.new do
        def self.name = "Foreign"
        %i[inspect to_s to_str to_sym to_i to_f].each { |name| define_method(name) { ($ran ||= []) << name && super() } }
      end.new
      options = %i[application_name sample_rate upload_interval tags report_pid log_level trace_id basic_auth_password]
      said = options.map { |name| Native.start({ server_address: "none", name => foreign }) rescue $!.message }
      said << (Native.tags_within({ "kind" => foreign }) { "ran" } rescue $!.message)
      puts said, $ran.inspect
    RUBY
    assert_equal "nil", output.lines(chomp: true).last
    assert_equal 9, output.lines.grep(/is not allowed; allowed: /).size, output
  end

  def test_what_interrupts_the_look_at_this_ruby_is_no_verdict
    output = run_program(<<~'RUBY')
      look = Native.method(:own_stack).unbind
      Native.define_singleton_method(:own_stack) { raise IOError, "out of time" }
      p (Native.start({ application_name: "test", server_address: "none" }) rescue $!.message)
      Native.define_singleton_method(:own_stack, look)
      p Native.supported, Native.start({ application_name: "test", server_address: "none" })
    RUBY
    assert_equal ['"out of time"', "nil", "true"], output.lines(chomp: true)
  end

  # What one ended in its wait was the profiler that the other had started meanwhile: no stop found it, and no start was possible.
  def test_starts_and_stops_of_many_threads_come_one_after_the_other
    output = run_program(<<~'RUBY')
      start = -> { Native.start({ application_name: "test", server_address: "none" }) }
      20.times do |number|
        threads = [-> { Native.stop(5.0) }, start, start].rotate(number).map { |call| Thread.new { call.call } }
        threads.each(&:join)
      end
      p start.call, Native.running?, Native.stop(5.0), Native.running?, Native.stop(5.0), start.call, Native.messages
    RUBY
    assert_equal %w[true true true false false true []], output.split
  end

  def test_who_waits_for_the_stop_of_another_thread_can_be_killed
    output = run_program(<<~'RUBY')
      require "socket"
      # A server that takes the connection and says nothing: the stop takes all of its time.
      server = TCPServer.new("127.0.0.1", 0)
      Native.start({ application_name: "test", server_address: "http://127.0.0.1:#{server.addr[1]}" })
      busy 30
      stopping = Thread.new { Native.stop(3.0) }
      Thread.pass until stopping.status == "sleep"
      waiting = Thread.new { Native.stop(4.0) }
      Thread.pass until waiting.status == "sleep"
      waiting.kill.join
      p stopping.alive?, waiting.status
      p stopping.value, Native.running?
    RUBY
    assert_equal %w[true false false false], output.split
  end
end
