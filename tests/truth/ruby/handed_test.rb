# frozen_string_literal: true

require_relative "native_helper"

# A span's own states add up to its wall time, whatever other threads and child processes do in it meanwhile.
class HandedTest < NativeTest
  PROGRAM = File.join(__dir__, "handed.rb")
  CONCURRENT = "(concurrent task)"
  TIMES = 5

  each_mode("time_of_other_threads_and_processes_is_beside_a_span_s_own") do |options|
    result = result_of(PROGRAM, options: options)
    of_cpu, of_wall = result[:seen].partition { |sample| sample[:state].nil? }
    # The profile of CPU time knows nothing of it.
    assert(of_cpu.any? { |sample| sample[:span] == "thread" })
    assert(of_cpu.all? { |sample| sample[:root] != CONCURRENT && sample[:flow].nil? })
    of_wall.each do |sample|
      assert_equal sample[:root] == CONCURRENT, sample[:flow] == "concurrent", sample.inspect
      refute sample[:inside], sample.inspect
    end
    result[:taken].each do |span, (wall, without_processor)|
      beside = span == :inner_outer ? result[:beside] : 0
      assert_span(span.to_s, wall, without_processor, beside, of_wall.select { |sample| sample[:span] == span.to_s })
    end
  end

  def assert_span(span, wall, without_processor, beside, samples)
    concurrent, own = samples.partition { |sample| sample[:flow] }
    own, concurrent = [own, concurrent].map do |part|
      part.group_by { |sample| sample[:state] }.transform_values { |of_state| of_state.sum { |sample| sample[:seconds] } }
    end
    said = "#{span}: own #{own}, concurrent #{concurrent} of #{wall} s, of which #{without_processor} s without a processor"
    # CPU time comes in periods, of which one may be a neighbour's; what a thread stood in the queue for at its end is not seen, nor
    # what a new one burnt before a busy kernel looks at its timer.
    least = %w[inner moved].include?(span) ? 0.4 : 0.6
    assert_operator own.values.sum, :>, least * (wall - without_processor), said
    # That is known by the tenth of a second, of which the first and the last one are shared with others.
    assert_operator own.values.sum, :<, (1.15 * wall) + 0.1, said
    threads = { "thread" => 1, "pool" => 2, "forked" => 1 }.fetch(span, 0)
    if threads.zero?
      # Between the context and the span of its own the other thread is in the one around it, on a busy machine in its run queue.
      assert_operator concurrent.except("gvl", "lock", "run_queue").values.sum, :<, 0.01 + beside, "#{said}, #{beside} s beside"
    else
      assert_operator concurrent.fetch("cpu", 0), :>, 0.2 * threads * TIMES * 0.03, said
      # A timer that expires late, within the sleep, takes off what it stands for.
      slept = concurrent.fetch("sleep", 0)
      assert_operator slept, :>, 0.7 * threads * TIMES * 0.03, said
      assert_operator slept + concurrent["cpu"], :>, 0.95 * threads * TIMES * 0.03, said
    end
  end
end
