# frozen_string_literal: true

# Grafana's gem holds a module of the same name, and was loaded first: what ours replaces goes.
if defined?(Pyroscope::Rust)
  Pyroscope.send(:remove_const, :Config)
  Pyroscope.send(:remove_const, :VERSION) if Pyroscope.const_defined?(:VERSION, false)
end

require_relative "pyroscope/version"
require_relative "pyroscope/config"
require_relative "pyroscope/environment"
require_relative "pyroscope/lifecycle"
require_relative "pyroscope/messages"
require_relative "pyroscope/profiler"
require_relative "pyroscope/rails"
require_relative "pyroscope/tags"
require_relative "pyroscope_otel/native"

# CPU profiles of a Ruby program, and of each OpenTelemetry span in it.
#
# Without OpenTelemetry:
#
#   require "pyroscope"
#
#   Pyroscope.configure do |config|
#     config.application_name = "checkout"
#     config.server_address = "http://localhost:4040"
#   end
#
# With it, one line more gives every span its own flame graph, see {Pyroscope::Otel::SpanProcessor}.
#
# The names and defaults are those of the gem `pyroscope`. What cannot be done (a Ruby that is not known, no server) never
# raises later on: the program goes on, and a logger says why, once.
module Pyroscope
  # Seconds that stopping may take, all in all.
  STOP_TIMEOUT = 5.0

  class << self
    # Starts profiling this process and the processes it forks. A profiler that runs already is stopped first, within 5 s.
    # Takes a few milliseconds and never waits for the server. Where threads call this or {stop} at the same time, they do one
    # after the other. Costs about 3 µs of CPU time a sample, which is 0.03 % at 100 Hz, and two threads.
    #
    # @param options [Hash{Symbol => Object}] options of {Config}, instead of or beside the block's
    # @yieldparam config [Config] to set options on
    # @return [Boolean] whether the profiler runs; if not, the logger says why
    # @raise [ArgumentError] a value is not allowed; the message names the option, the value and what is allowed. Nothing
    #   was started or stopped
    # @raise [NoMethodError] there is no such option
    def configure(**options)
      config = Config.new
      options.each { |name, value| config.public_send(:"#{name}=", value) }
      yield config if block_given?
      Profiler.configure(config)
    end

    # @return [Config, nil] what the last configure was given; nil before the first
    def current_config
      Profiler.config
    end

    # Ends profiling: uploads what there is and ends the profiler's threads, within 5 s. configure works again.
    # Called at exit without being asked, after the last block of at_exit. Other threads run while it waits. A stop or a
    # configure that another thread has begun is waited for first, 10 s at most.
    #
    # @return [Boolean] whether a profiler ran and all that it still had was delivered: no profile was refused or dropped
    #   meanwhile; {stats} says what became of it
    def stop
      stopped = Native.stop(STOP_TIMEOUT)
      Messages.deliver
      stopped
    end
    alias shutdown stop

    # Uploads what was sampled so far, without waiting for the next interval. Other threads run while it waits.
    #
    # @param timeout [Numeric] seconds to wait at most
    # @return [Boolean] whether all of it is settled: also what was refused or dropped, as {stats} says. false without a
    #   profiler
    def flush(timeout = 5.0)
      flushed = Native.flush(timeout.to_f)
      Messages.deliver
      flushed
    end

    # @return [Boolean] whether a profiler runs
    def running?
      Native.running?
    end

    # What became of every sample, in number and weight (CPU nanoseconds), and the profiler's own CPU time. The sums hold
    # at any time: `taken = dropped_ring + dropped_window + pending + encoded` and
    # `encoded = queued + uploaded + refused + dropped_queue + dropped_old + discarded`, and with `wall_time`, of waits,
    # `waits_taken = waits_sampled + waits_outside + waits_pending + waits_dropped_ring + waits_dropped_busy +
    # waits_dropped_thread`. After {stop} they are those of the profiler that ended; zeros if there was none yet. Takes
    # microseconds.
    #
    # @return [Hash{Symbol => Object}]
    def stats
      Messages.deliver
      Native.stats
    end

    # Where messages go: OpenTelemetry.logger where that is loaded, else a Logger on the standard error.
    #
    # @return [Logger, nil] the one that was set
    def logger
      Messages.logger
    end

    # @param logger [Logger, nil]
    def logger=(logger)
      Messages.logger = logger
    end
  end
end
