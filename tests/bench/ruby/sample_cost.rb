# frozen_string_literal: true

# What a sample of some 60 frames costs in a busy program: in the handler, and until it is read and its names are known.
#
#   ruby sample_cost.rb [--seconds N] [--rate HZ] [--work hot|cold] [--server file:///folder]      prints JSON
#
# handler_ns is wall time in the handler over the number of samples, drain_ns CPU time in which threads of the program
# read rings and look up names (once a window for each function), own_cpu the profiler's own threads as a share of one core.
#
#   hot     one stack of 59 functions whose leaf counts
#   cold    100 functions take turns, and the leaf reads through 8 MB of strings, so nothing is in a cache any more
require "json"
require "tmpdir"
$LOAD_PATH.unshift(File.expand_path("../../../bindings-ruby/lib", __dir__))
require "pyroscope_otel/native"

module SampleCost
  FUNCTIONS = 100
  DEPTH = 55
  FUNCTIONS.times do |number|
    eval("def self.f#{number}(depth) = depth.zero? ? burn : f#{(number * 7 + 1) % FUNCTIONS}(depth - 1)", binding, __FILE__, __LINE__)
  end
  KEPT = Array.new(200_000) { |number| number.to_s }

  module_function

  def burn
    sum = 0
    20_000.times { |number| sum += number } if @is_hot
    return sum if @is_hot

    2_000.times { |number| sum += KEPT[(number * 7_919) % KEPT.size].size }
    sum
  end

  def run(seconds, rate, server, work)
    @is_hot = work == "hot"
    started = Pyroscope::Native.start({ application_name: "cost", server_address: server, sample_rate: rate, log_level: "error" })
    raise "not running: #{Pyroscope::Native.messages}" unless started

    clock = -> { Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) }
    began = clock.call
    number = 0
    send(:"f#{(number += @is_hot ? 0 : 13) % FUNCTIONS}", DEPTH) while clock.call < began + seconds
    Pyroscope::Native.flush(10.0)
    stats = Pyroscope::Native.stats
    Pyroscope::Native.stop(10.0)
    # A sample may stand for several expiries of the timer: what is counted is how often the handler ran.
    samples = stats[:taken][:samples].to_f
    { ruby: RUBY_DESCRIPTION, work: work, rate: rate, samples: samples.to_i, unit: "ns", handler_ns: (stats[:handler_ns] / samples).round,
      drain_ns: (stats[:drain_ns] / samples).round, own_cpu: (stats[:own_cpu_ns] / 1e9 / seconds).round(6),
      frames: DEPTH + 4, dropped: stats[:dropped_ring][:samples] }
  end
end

options = Hash[*ARGV]
Dir.mktmpdir do |folder|
  server = options.fetch("--server", "file://#{folder}")
  puts JSON.generate(SampleCost.run(Float(options.fetch("--seconds", 10)), Integer(options.fetch("--rate", 100)), server, options.fetch("--work", "hot")))
end
