# frozen_string_literal: true

require_relative "native_helper"

# What a span waited for is seen: how long, in which state, below which method, and in no other span.
#
# What a wait took at most its program knows by its own clock, what it took at least by what ends it, which begins when the wait has. In
# between is what Ruby does before and after, on a machine that others use too.
class WaitsTest < NativeTest
  PROGRAM = File.join(__dir__, "waits.rb")
  LEAST = 5 * 0.03
  # The innermost method, or how the leaf says what it was.
  INNERMOST = {
    "sleep_for_a_time" => "sleep", "sleep_until_woken" => "sleep", "sleep_until_timeout" => "sleep", "io_read" => "read",
    "io_write_to_a_full_pipe" => "write", "io_recv" => "recv", "io_accept" => "accept", "io_select" => "select",
    "io_wait_readable" => "wait_readable", "io_wait" => "wait", "io_foreach" => "foreach", "lock_mutex" => "synchronize", "lock_condition" => "sleep",
    "lock_condition_for_a_time" => "sleep", "lock_monitor" => "sleep", "lock_queue" => "pop", "lock_join" => "join",
    "lock_file" => "flock", "child_system" => "system", "child_wait" => "wait", "child_of_an_io" => "`",
    "gvl_after_a_sleep" => "sleep",
    "await_yield" => "yield"
  }.freeze

  each_mode("a_wait_is_seen_as_long_as_it_was") do |options|
    # In one of them at least the processor was there for who woke up; on a busy machine maybe only in the next program.
    waited = Array.new(3).lazy.map { assert_ways(result_of(PROGRAM, options: options)) }
    assert waited.any? { |seconds| seconds > 0.8 * LEAST }, "nobody waited for the GVL"
  end

  # In none of them a fiber waits for others than the one that it resumed.
  each_mode("a_fiber_that_ended_is_no_wait_of_the_next_one_at_its_place") do |options|
    result = result_of(File.join(__dir__, "fibers_that_end.rb"), options: options)
    assert_equal 4, result.size
    result.each { |way, seen| assert_equal 0, seen[:suspended], "#{way}, of #{seen[:length]} s" }
  end

  # How long those that had to wait for the GVL did.
  def assert_ways(result)
    taken = result[:taken].transform_keys(&:to_s)
    result[:seen].each do |sample|
      # OpenTelemetry's own code too waits for the GVL, or for a CPU, where others burn, and collects garbage.
      next if sample[:within].empty? && %w[gvl run_queue gc].include?(sample[:state])

      assert_equal [sample[:span]], sample[:within], sample.inspect
    end
    taken.each { |way, (wall, cpu)| assert_way(way, wall, cpu, result[:seen].select { |sample| sample[:span] == way }) }
    taken.each { |way, (wall, cpu)| assert_said(way, wall, cpu, result[:said].fetch(way.to_sym)) }
    waited = result[:seen].select { |sample| sample[:state] == "gvl" && sample[:span].to_s.start_with?("gvl") }
    waited.sum { |sample| sample[:seconds] }
  end

  # What spans say themselves, exactly: no sum is more than the span.
  def assert_said(way, wall, cpu, said)
    sums = said[:states].transform_keys(&:to_s)
    text = "#{way}: #{said} of #{wall} s, of which #{cpu} s of CPU"
    assert_operator said[:share], :<=, 1, text
    state = way[/\A[a-z]+/]
    return assert_operator sums.values.sum, :<, wall - cpu + (0.1 * cpu), text if state == "cpu"

    longer = state == "gvl" ? sums.values_at("sleep", "lock").compact.sum : 0
    assert_operator sums.fetch(state, 0) + longer, :>, 0.8 * LEAST, text
    # Ruby yields where it makes a thread, on a busy machine for long.
    assert_operator sums.except(state, "gvl", "run_queue").values.sum, :<, state == "gvl" ? wall : 0.25 * wall, text
  end

  def assert_way(way, wall, cpu, samples)
    sums = samples.group_by { |sample| sample[:state] }.transform_values { |of_state| of_state.sum { |sample| sample[:seconds] } }
    # What a busy machine adds anywhere.
    sums.delete("run_queue")
    said = "#{way}: #{sums} of #{wall} s, of which #{cpu} s of CPU"
    state = way[/\A[a-z]+/]
    # On a busy machine others hold the GVL for longer than they need it.
    return assert_operator sums.except("gc").values.sum, :<, wall - cpu + (0.1 * cpu), said if state == "cpu"

    # Who is woken while another thread burns may on a busy machine not run before that one is done, and then waits for no GVL.
    longer = state == "gvl" ? sums.values_at("sleep", "lock").compact.sum : 0
    assert_operator sums.fetch(state, 0) + longer, :>, 0.8 * LEAST, said
    assert_operator sums.fetch(state, 0), :<, 1.03 * wall, said
    # To begin a thread or a process is a wait too, on a busy machine for long, and who waited waits for the GVL afterwards.
    assert_operator sums.except(state, "gvl").values.sum, :<, state == "gvl" ? 1.03 * wall : 0.4 * wall, said
    # Until another thread has the Mutex it is waited for that, on a busy machine for longer.
    samples = samples.reject { |sample| sample[:method] == "pop" } if way == "lock_mutex"
    longest = samples.select { |sample| sample[:state] == state }.group_by { |sample| sample.values_at(:method, :leaf) }
                     .max_by { |_, alike| alike.sum { |sample| sample[:seconds] } }
    return unless longest

    method, is_called = longest.first
    assert_equal INNERMOST.fetch(way, method), method, said
    leaf = { "gvl" => "(waits for the GVL)", "await" => "(fiber waits)" }[state]
    assert_equal leaf, is_called if leaf
  end
end
