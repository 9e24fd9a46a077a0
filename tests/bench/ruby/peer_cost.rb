# frozen_string_literal: true

# What other profilers' own threads use while one thread burns CPU in a stack of 60 frames.
#
#   ruby peer_cost.rb pyroscope|datadog [--rate HZ] [--seconds N]      prints JSON
#
# CPU time of the process without that of the thread that burns, as a share of a core. Where a profiler works in the thread
# that it samples, that is not in it.
require_relative "program"
require_relative "../../support/ruby/receiver"

name = ARGV.fetch(0)
options = Program.options(rate: 100, seconds: 10.0)

# In a process of its own, which ends with this one.
receiver = Receiver.new
place = receiver.place

case name
when "pyroscope"
  require "pyroscope"
  Pyroscope.configure do |config|
    config.application_name = "cost"
    config.server_address = "http://#{place}"
    config.sample_rate = options[:rate]
  end
when "datadog"
  require "datadog"
  Datadog.configure do |config|
    config.service = "cost"
    config.agent.host, config.agent.port = place.split(":").then { |host, port| [host, port.to_i] }
    config.logger.level = Logger::FATAL
    config.tracing.enabled = false
    config.telemetry.enabled = false
    config.remote.enabled = false
    config.profiling.enabled = true
  end
else
  raise ArgumentError, "#{name} is not allowed; allowed: pyroscope, datadog"
end

began, process, thread = Process.clock_gettime(Process::CLOCK_MONOTONIC), Program.process_cpu_ns, Program.thread_cpu
Program.burn_at_depth(60, options[:seconds])
beside = (Program.process_cpu_ns - process) / 1e9 - (Program.thread_cpu - thread)
Program.print({ version: Gem.loaded_specs.fetch(name).version.to_s, own_share: beside / (Process.clock_gettime(Process::CLOCK_MONOTONIC) - began) })
$stdout.flush
exit!(0) # Without what they do at exit.
