# frozen_string_literal: true

require_relative "native_helper"

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
        %i[inspect to_s to_str to_sym to_i to_f].each { |name| define_method(name) { Thread.exit } }
      end.new
      options = %i[application_name sample_rate upload_interval tags report_pid log_level trace_id basic_auth_password]
      said = options.map { |name| Native.start({ server_address: "none", name => foreign }) rescue $!.message }
      said << (Native.tags_enter({ "kind" => foreign }) rescue $!.message)
      puts said
    RUBY
    assert_equal 9, output.lines.grep(/is not allowed; allowed: /).size, output
  end
end
