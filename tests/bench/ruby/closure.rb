# frozen_string_literal: true

# Whether all time of spans is found: threads that run, sleep, and wait for sockets, locks and each other, all in spans.
#
#   ruby closure.rb [--seconds N] [--threads N]      prints JSON
#
# Waits take some ten milliseconds: they are so few that most become samples, which leaves half a percent of a minute's sum to
# chance.
require_relative "spans"
require "socket"

module Closure
  SHARED = Mutex.new

  module_function

  # Serves until then, by the monotonic clock; how long its spans were and how long it waited for a processor, nanoseconds.
  def serve(number, end_ns)
    chance = Random.new(number)
    ours, theirs = UNIXSocket.pair
    wall_ns, delayed_ns = 0, delay_ns
    while Spans.now_ns < end_ns
      Spans::TRACER.in_span("request") do
        began_ns = Spans.now_ns
        chance.rand(1..7).times { JSON.generate(Array.new(10_000) { |value| value }) }
        # Within the lock other threads run, and come to it.
        SHARED.synchronize { 60_000.times { |value| value + 1 } && sleep(chance.rand * 0.01) }
        Thread.new(chance.rand * 0.06) { |seconds| sleep(seconds) && theirs.send("x", 0) }
        ours.recv(1)
        sleep(chance.rand * 0.03)
        wall_ns += Spans.now_ns - began_ns
      end
    end
    { wall_ns: wall_ns, delay_ns: delay_ns - delayed_ns }
  end

  def delay_ns = Integer(File.read("/proc/thread-self/schedstat").split[1])
end

options = Program.options(seconds: 60.0, threads: 4)
records = []
# At 1,000 Hz the sums of CPU time are known to a percent after some seconds.
samples = Spans.profiled(sample_rate: 1_000) do
  end_ns = Spans.now_ns + (options[:seconds] * 1e9).round
  records = options[:threads].times.map { |number| Thread.new { Closure.serve(number, end_ns) } }.map(&:value)
end
Program.print({ found_ns: Spans.sums(samples).fetch("request"), wall_ns: records.sum { |record| record[:wall_ns] },
                delay_ns: records.sum { |record| record[:delay_ns] } })
