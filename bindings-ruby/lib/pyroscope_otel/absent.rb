# frozen_string_literal: true

module Pyroscope
  # The native part could not do what it was asked.
  Error = Class.new(StandardError)

  # In place of the native part where none can be loaded: each method answers as one does while no profiler runs. Spans get
  # no attribute, as it would lead to no profile.
  module Native
    TALLIES = %i[
      taken dropped_ring dropped_window pending encoded queued uploaded refused dropped_queue dropped_old dropped_unanswered
      discarded waits_taken waits_sampled waits_outside waits_pending waits_dropped_ring waits_dropped_busy
      waits_dropped_thread
    ].freeze
    NUMBERS = %i[
      deferred windows profiles_encoded profiles_uploaded bytes_uploaded profiles_refused refused_credentials refused_address
      refused_profiles profiles_dropped retries retries_unanswered spans_lost names_cut frames_unresolved tag_sets_lost
      threads threads_unsampled threads_without_timer threads_without_ring own_cpu_ns handler_ns drain_ns stacks_unreadable
    ].freeze

    @reported = false
    @waiting = []

    class << self
      # Says why it is absent.
      #
      # @param reason [String, nil] why what is compiled does not load; nil: nothing is
      def explain(reason)
        version = RUBY_VERSION[/\A\d+\.\d+/]
        found = reason ? "what is compiled for Ruby #{version} does not load (#{reason})" : "nothing is compiled for Ruby #{version}"
        @why = "no profiles are taken, spans go on working: in the gem pyroscope-otel #{VERSION} #{found}. Install the gem with " \
               'the sources, which compiles them with Rust and libclang: gem "pyroscope-otel", force_ruby_platform: true in a ' \
               "Gemfile, or gem install pyroscope-otel --platform ruby"
        nil
      end

      # Tells why not, the first time, unless profiling is switched off.
      def start(settings)
        if !@reported && settings.fetch(:enabled) { Environment.flag("PYROSCOPE_PROFILING_ENABLED", true) }
          @reported = true
          @waiting << [:warning, @why]
        end
        false
      end

      def messages
        waiting, @waiting = @waiting, []
        waiting
      end

      def stats
        # @type var stats: Hash[Symbol, tally | Integer | String]
        stats = {}
        TALLIES.each { |name| stats[name] = { samples: 0, weight: 0 } }
        NUMBERS.each { |name| stats[name] = 0 }
        stats[:last_error] = ""
        stats
      end

      def stop(_seconds) = false
      def finish(_seconds) = false
      def flush(_seconds) = false
      def running? = false
      def after_fork = false
      def environment = ["", []]
      def resource_labels(_attributes) = {}
      def install_context_hooks = nil
      def configure_spans(_scope_all, _inherit_fibers, _names) = nil
      def want_times(_wanted) = nil
      def span_times(_span, _wall_ns) = nil
      def wall_time? = false
      def span_started(_span, _parent_context) = false
      def span_finished(_span) = nil
      def tags_within(_tags) = yield(false)
      def add_thread_tag(_name, _value) = false
      def remove_thread_tag(_name, _value) = false
    end
  end
end
