# frozen_string_literal: true

require "logger"

module Pyroscope
  # Passes on to a logger what a user should know. The native part keeps its messages until one of our Ruby methods comes
  # by: {Pyroscope.configure}, {Pyroscope.flush}, {Pyroscope.stats}, {Pyroscope.stop}, {Pyroscope.tag_wrapper}, the start of a span
  # that gets attributes. A logger runs code of the program, which has no place in a thread of ours.
  module Messages
    LEVELS = { info: Logger::INFO, warning: Logger::WARN }.freeze

    # What PYROSCOPE_LOG_LEVEL and the option log_level name, as Logger numbers it.
    THRESHOLDS = {
      "trace" => Logger::INFO, "debug" => Logger::INFO, "info" => Logger::INFO,
      "warn" => Logger::WARN, "warning" => Logger::WARN, "error" => Logger::FATAL, "off" => Logger::FATAL
    }.freeze
    # Different warnings that are given at most: their texts may hold what a program made up.
    MAX_REPORTED = 100

    MAIN_RACTOR = Ractor.current

    @warned = {}
    @waiting = []
    @checked_at = 0
    @threshold = Logger::WARN

    class << self
      # @return [Logger, nil] where messages go, if a program has chosen
      attr_accessor :logger

      # From now on messages below this level are left out.
      #
      # @param level [String, nil] the option log_level; nil: the environment's
      def keep_to(level)
        level ||= ENV.fetch("PYROSCOPE_LOG_LEVEL", "").strip
        @threshold = THRESHOLDS.fetch(level.to_s.downcase, Logger::WARN)
      end

      # Passes on what the native part has to say. It says a thing once: what a thread that is interrupted did not get to waits here.
      def deliver
        # In a Ractor there is none: the logger is the main one's, and so is what waits.
        return unless Ractor.current == MAIN_RACTOR

        Thread.handle_interrupt(Exception => :never) do
          Native.messages.each { |level, text| @waiting << [LEVELS.fetch(level), text] }
        end
        while (message = @waiting.shift)
          level, text = message
          log(level, text)
        end
      end

      # The same, once a second at most. About 0.1 µs mostly.
      def deliver_due
        now = ::Process.clock_gettime(::Process::CLOCK_MONOTONIC, :second)
        return if now == @checked_at

        @checked_at = now
        deliver
      end

      # Runs a block whose `rescue` is for what the block itself raises: what the program sends to the thread meanwhile (Timeout,
      # Thread#raise) comes after it.
      def undisturbed(&block)
        Thread.handle_interrupt(StandardError => :never, &block)
      end

      # Passes a warning on, the first time that it is given.
      #
      # @param key [Object] what tells it from others
      # @param text [String]
      def warn_once(key, text)
        say_once(key, Logger::WARN, text)
      end

      # The same for what is worth knowing and no warning.
      def inform_once(key, text)
        say_once(key, Logger::INFO, text)
      end

      private

      def say_once(key, level, text)
        return if @warned.key?(key) || @warned.size >= MAX_REPORTED

        @warned[key] = true
        log(level, text)
      end

      def log(level, text)
        return if level < @threshold

        undisturbed do
          (logger || default).add(level, text, "pyroscope")
        rescue StandardError
          # A logger that raises is not ours to report: there is nowhere left to say it.
        end
      end

      def default
        return OpenTelemetry.logger if defined?(OpenTelemetry) && OpenTelemetry.respond_to?(:logger)

        @default ||= Logger.new($stderr, progname: "pyroscope")
      end
    end
  end
end
