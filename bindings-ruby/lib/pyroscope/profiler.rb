# frozen_string_literal: true

module Pyroscope
  # The one profiler of this process, and what it was started with.
  module Profiler
    @config = nil
    @configured = false
    @application_name = ""
    @labels = []
    # What threads are just starting: what does it again.
    @under_way = {}.compare_by_identity

    class << self
      # @return [Config, nil] of the last start
      attr_reader :config

      # @return [String] the application's name that profiles carry
      attr_reader :application_name

      # @return [Boolean] whether the program called configure: then a span processor starts nothing by itself
      def configured?
        @configured
      end

      # @param config [Config]
      # @return [Boolean] whether the profiler runs
      def configure(config)
        running = launch(config) { configure(config) }
        @configured = true
        unless config.oncpu
          Messages.warn_once(:oncpu, "configure(oncpu: false): CPU time is always profiled; wall_time: true adds waiting time")
        end
        running
      end

      # Starts the native part and remembers under which name. The block does it again, in a child that is forked meanwhile.
      def launch(config, &again)
        settings = config.settings
        asked = Environment::NOT_YET.select { |name| Environment.flag(name, false) }
        # No moment without it: what a signal's handler raises may come when the profiler has just begun.
        Lifecycle.watch
        @under_way[Thread.current] = again
        # What other threads send (Timeout, Thread#raise) comes afterwards, so nothing runs that is not known here. Not what kills a
        # thread: ours begins in there with the same mask, and Ruby's end would wait for it for ever.
        Thread.handle_interrupt(Exception => :never) do
          running = Native.start(settings)
          @config = config
          started(config, settings) if running
          running
        end
      ensure
        @under_way.delete(Thread.current)
        Messages.keep_to(config.given?(:log_level) ? config.log_level : nil)
        # Now that it is known which messages are wanted.
        asked&.each { |name| Messages.inform_once(name, "#{name}: only CPU time is profiled yet") }
        Messages.deliver
      end

      # In a forked child: starts what a thread of the parent was just starting, which is not in this process.
      def take_over
        lost = @under_way.reject { |thread, _| thread.alive? }
        lost.each_key { |thread| @under_way.delete(thread) }
        lost.each_value(&:call)
      end

      # @param name [String] of a label
      # @return [Boolean] whether the running profiler's profiles have it
      def label?(name)
        @labels.include?(name)
      end

      private

      def started(config, settings)
        name, labels = Native.environment
        @application_name = settings.fetch(:application_name, name)
        @labels = labels | config.tags.keys.map(&:to_s)
        Rails.install if config.autoinstrument_rails
        check_for_others
      end

      # Grafana's gem holds a module of the same name.
      def check_for_others
        return unless Gem.loaded_specs.key?("pyroscope")

        Messages.warn_once(
          :others,
          "the gem pyroscope is loaded beside pyroscope-otel #{VERSION}, which has all of it: " \
          "keep pyroscope-otel and remove pyroscope from the Gemfile"
        )
      end
    end
  end
end
