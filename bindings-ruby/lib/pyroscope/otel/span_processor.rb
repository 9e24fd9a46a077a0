# frozen_string_literal: true

require "opentelemetry/sdk"
require_relative "resource"
require_relative "times"

module Pyroscope
  module Otel
    # Labels profiles with spans and spans with their profile:
    #
    #   OpenTelemetry::SDK.configure do |sdk|
    #     sdk.add_span_processor(Pyroscope::Otel::SpanProcessor.new)
    #     exporter = OpenTelemetry::Exporter::OTLP::Exporter.new
    #     sdk.add_span_processor(OpenTelemetry::SDK::Trace::Export::BatchSpanProcessor.new(exporter))
    #   end
    #
    # The SDK adds an OTLP exporter by itself only where no span processor is added.
    #
    # If {Pyroscope.configure} was never called, the first span starts the profiler, from the environment and with the
    # resource's service.name as application name; OTEL_PYROSCOPE_START_PROFILING=false or PYROSCOPE_PROFILING_ENABLED=false
    # prevent that.
    #
    # CPU time is counted for the span that is *current* when it is burnt. From the first processor on attaching and
    # detaching a context take 0.1 to 0.3 µs more; starting and ending a span take some 0.5 µs more, and one more
    # where attributes are set.
    class SpanProcessor
      # The attribute that makes Grafana show a flame graph button: the span's id, 16 hex digits.
      PROFILE_ID = "pyroscope.profile.id"
      # The attribute with the address of the span's flame graph.
      PROFILE_URL = "pyroscope.profile.url"

      # What setting an attribute could raise. Not StandardError: that may be the program's, which interrupts the thread
      # (Timeout, Thread#raise).
      MISTAKES = [NameError, ArgumentError, TypeError, FrozenError, EncodingError, IndexError, RangeError].freeze
      SCOPES = %i[root all].freeze
      SUCCESS = OpenTelemetry::SDK::Trace::Export::SUCCESS
      TIMEOUT = OpenTelemetry::SDK::Trace::Export::TIMEOUT

      # @return [String, nil] the application's name in addresses of flame graphs
      attr_accessor :app_name
      # @return [String, nil] the server's address in them
      attr_reader :pyroscope_endpoint
      # @return [Boolean] whether spans get {PROFILE_URL}; only with an app_name and a pyroscope_endpoint
      attr_accessor :add_url
      # @return [Boolean] whether samples carry names of spans
      attr_reader :add_span_name
      # @return [Boolean] whether samples carry the local root span, which alone gets attributes
      attr_reader :root_span_only

      # @param app_name [String, nil] only for {PROFILE_URL}; where the processor starts the profiler its name too, without
      #   the ".cpu" that Grafana's documentation puts at its end
      # @param pyroscope_endpoint [String, URI, nil] the server's address, likewise
      # @param scope [Symbol, String, nil] :root: samples carry the local root span (one without a parent in this process),
      #   which alone gets attributes. :all: samples carry the innermost span, and every span gets them. nil: :root, unless
      #   OTEL_PYROSCOPE_ROOT_SPAN_ONLY=false
      # @param inherit_fibers [Boolean] true: a fiber without a context of its own carries the span of the fiber that
      #   created it
      # @param time_attributes [Boolean, nil] true: each span that samples carry says at its end what its time went to, in
      #   nanoseconds, as attributes: "pyroscope.time.io", "pyroscope.time.lock", "pyroscope.time.await" and so on, exactly and not
      #   sampled, which takes wall_time; a local root that begins and ends on one thread, and in no fiber, also
      #   "pyroscope.time.cpu". nil: false, unless OTEL_PYROSCOPE_TIME_ATTRIBUTES=true
      # @raise [ArgumentError] scope is neither, or a flag is no boolean. A variable that is none is told by the logger, and left at
      #   its default
      def initialize(app_name = nil, pyroscope_endpoint = nil, scope: nil, inherit_fibers: false, time_attributes: nil)
        scope = variable("OTEL_PYROSCOPE_ROOT_SPAN_ONLY", true) ? :root : :all if scope.nil?
        unless scope.respond_to?(:to_sym) && SCOPES.include?(scope.to_sym)
          raise ArgumentError, "scope: #{scope.inspect} is not allowed; allowed: :root, :all"
        end

        @app_name = app_name
        @pyroscope_endpoint = pyroscope_endpoint && URI.parse(pyroscope_endpoint.to_s)
        @root_span_only = scope.to_sym == :root
        @inherit_fibers = flag("inherit_fibers", inherit_fibers || false)
        @add_span_name = variable("OTEL_PYROSCOPE_ADD_SPAN_NAME", true)
        @add_url = variable("OTEL_PYROSCOPE_ADD_PROFILE_URL", true)
        @start_profiling = variable("OTEL_PYROSCOPE_START_PROFILING", true)
        time_attributes = variable("OTEL_PYROSCOPE_TIME_ATTRIBUTES", false) if time_attributes.nil?
        @time_attributes = flag("time_attributes", time_attributes)
        @lock = Mutex.new
        @begun = @started_profiler = false
        Native.install_context_hooks
        Native.want_times(true) if @time_attributes
        configure_spans
      end

      # @param endpoint [String, URI, nil]
      def pyroscope_endpoint=(endpoint)
        @pyroscope_endpoint = endpoint && URI.parse(endpoint.to_s)
      end

      # @param root_span_only [Boolean]
      def root_span_only=(root_span_only)
        @root_span_only = root_span_only
        configure_spans
      end

      # @param add_span_name [Boolean]
      def add_span_name=(add_span_name)
        @add_span_name = add_span_name
        configure_spans
      end

      # Called by the SDK when a span starts. Never raises.
      def on_start(span, parent_context)
        begin_with(span) unless @begun
        annotate(span) if Native.span_started(span, parent_context)
      rescue *MISTAKES => error
        OpenTelemetry.handle_error(exception: error, message: "unexpected error in span.on_start")
      end

      # Called by newer SDKs before any processor is told that a span has ended. Never raises.
      def on_finishing(span)
        set_times(span) if @time_attributes
      end

      # Called by the SDK when a span has ended. Never raises.
      def on_finish(span)
        set_times(span) if @time_attributes && !Times::HAS_ON_FINISHING
        Native.span_finished(span)
      end

      # Uploads what was sampled so far.
      #
      # @param timeout [Numeric, nil] seconds to wait at most; nil: 30
      # @return [Integer] Export::SUCCESS, also without a profiler, or Export::TIMEOUT
      def force_flush(timeout: nil)
        return SUCCESS unless Native.running?

        Pyroscope.flush(timeout || 30) ? SUCCESS : TIMEOUT
      end

      # Ends the profiler if this processor started it.
      #
      # @param timeout [Numeric, nil] without effect: 5 s at most
      # @return [Integer] Export::SUCCESS
      def shutdown(timeout: nil)
        Native.want_times(false) if @time_attributes
        @time_attributes = false
        Pyroscope.stop if @started_profiler
        @started_profiler = false
        SUCCESS
      end

      private

      def flag(name, value)
        return value if [true, false].include?(value)

        raise ArgumentError, "#{name}: #{value.inspect} is not allowed; allowed: true, false"
      end

      # A boolean of the environment. What is none is told once: an error here would take the program's spans along.
      def variable(name, default)
        Environment.flag(name, default)
      rescue ArgumentError => error
        Messages.warn_once(name, "#{error.message}. It is taken for #{default}.")
        default
      end

      def configure_spans
        Native.configure_spans(!@root_span_only, @inherit_fibers, @add_span_name)
      end

      def annotate(span)
        id = span.context.hex_span_id
        span.set_attribute(PROFILE_ID, id)
        span.set_attribute(PROFILE_URL, profile_url(id)) if @add_url && @pyroscope_endpoint && @app_name
        Messages.deliver_due
      end

      def set_times(span)
        Times.set_attributes(span)
      rescue *MISTAKES, Pyroscope::Error => error
        Messages.warn_once(:times, "spans have no attributes that say their time: #{error.message}")
      end

      def profile_url(id)
        from = ::Process.clock_gettime(::Process::CLOCK_REALTIME, :second)
        query = "#{@app_name}{profile_id=\"#{id}\"}"
        "#{@pyroscope_endpoint}?#{URI.encode_www_form(query: query, from: from, until: from + 3600)}"
      end

      # The first span, whose resource says under which name its traces are filed. Spans of other threads, or of a signal's handler,
      # wait for nothing meanwhile. A child that was forked meanwhile has the lock back, and its first span does it all.
      def begin_with(span)
        # What comes for this thread comes afterwards: no other span does the rest.
        Thread.handle_interrupt(Exception => :never) do
          taken = @lock.try_lock
          next unless taken

          meet(Resource.new(span.resource)) unless @begun
        rescue StandardError => error
          Messages.warn_once(:resource, "no profiles are taken, spans go on working: #{error.message}")
        ensure
          if taken
            @begun = true
            @lock.unlock
          end
        end
      end

      def meet(resource)
        if Profiler.configured?
          resource.compare_labels if Native.running?
        elsif @start_profiling && !Native.running?
          @started_profiler = Profiler.launch(config_for(resource)) { meet(resource) }
        end
        return unless Native.running?

        resource.compare_name
        return if !@time_attributes || Native.wall_time?

        Messages.warn_once(
          :wall_time,
          "spans say no waits as attributes: time_attributes needs wall time, configure(wall_time: true) or " \
          "PYROSCOPE_PROFILING_WALLTIME_ENABLED=true"
        )
      end

      # What the environment leaves open comes from the resource, else from the arguments of `new`.
      def config_for(resource)
        config = Config.new
        if ENV.fetch("PYROSCOPE_APPLICATION_NAME", "").strip.empty?
          config.application_name = resource.chosen_name || @app_name&.delete_suffix(".cpu") || resource.name
        end
        config.tags = resource.labels unless resource.labels.empty?
        if @pyroscope_endpoint && ENV.fetch("PYROSCOPE_SERVER_ADDRESS", "").strip.empty?
          config.server_address = @pyroscope_endpoint.to_s
        end
        config
      end
    end
  end
end
