# frozen_string_literal: true

module Pyroscope
  # Tags of samples: those of a fiber, and those of a thread.
  #
  # A name that no server takes is left out and told once: what is inside a {Pyroscope.tag_wrapper} has to run.
  module Tags
    # Names that are remembered at most, with what became of them.
    MAX_NAMES = 1_000

    # Text by name as it was given; false: not allowed.
    @names = {}

    class << self
      # @param tags [Hash]
      # @return [Hash{String => String}] those whose name is allowed
      def allowed(tags)
        kept = {} #: Hash[String, String]
        tags.each do |name, value|
          text = known(name)
          kept[text] = Text.of(value) if text
        end
        kept
      end

      private

      def known(name)
        @names.fetch(name) do
          @names.clear if @names.size >= MAX_NAMES
          @names[name.is_a?(String) ? name.dup.freeze : name] = check(name)
        end
      end

      def check(name)
        text = Text.of(name).freeze
        Native.check_tag_name("tags", text)
        text
      rescue ArgumentError => error
        Messages.warn_once([:tag, text], "#{error.message}; the tag is left out")
        false
      end
    end
  end

  class << self
    # Labels the samples of a block of code:
    #
    #   Pyroscope.tag_wrapper({ tenant: "acme" }) { ... }
    #
    # Tags belong to the fiber that runs the block, as spans do. A nested block adds to the outer one's and restores them at
    # its end, whatever the values. Takes about 1 µs. Each set of values is a series in the server: use values of which
    # there are few. Values become text. A name that is not allowed (see `tags` of {Config}) is left out, and the logger
    # says so once.
    #
    # @param tags [Hash]
    # @return [Object] what the block returns
    def tag_wrapper(tags)
      outer = Native.current_tags
      inner = Native.tag_set(Tags.allowed(tags))
      begin
        Native.current_tags = inner
        yield
      ensure
        Native.current_tags = outer
        Native.release_tags(inner)
      end
    end

    # Labels the samples of a thread until {_remove_tags}, whatever code it runs. Takes (tags) for the calling thread, and
    # (thread_id, tags) as the gem of 0.x did. Prefer {tag_wrapper}, whose tags win. Adding twice takes removing twice. A
    # thread keeps the last 64. Without effect while no profiler runs.
    #
    # @param thread_id [Integer, nil] of {thread_id}; nil: the calling thread
    # @param tags [Hash]
    # @return [nil]
    def _add_tags(thread_id = nil, tags) # steep:ignore MethodParameterMismatch
      Tags.allowed(tags).each { |name, value| Native.add_thread_tag(thread_id, name, value) }
      nil
    end

    # Takes back the last {_add_tags} of the same names and values.
    #
    # @param thread_id [Integer, nil] of {thread_id}; nil: the calling thread
    # @param tags [Hash]
    # @return [nil]
    def _remove_tags(thread_id = nil, tags) # steep:ignore MethodParameterMismatch
      Tags.allowed(tags).each { |name, value| Native.remove_thread_tag(thread_id, name, value) }
      nil
    end

    # @return [Integer] the calling thread's id, as the kernel names it
    def thread_id
      Thread.current.native_thread_id
    end

    # Deprecated, without effect: use {tag_wrapper}.
    def tag(_tags)
      warn("Pyroscope.tag has no effect, use Pyroscope.tag_wrapper", category: :deprecated, uplevel: 1)
    end

    # Deprecated, without effect: use {tag_wrapper}.
    def remove_tags(*_names)
      warn("Pyroscope.remove_tags has no effect, use Pyroscope.tag_wrapper", category: :deprecated, uplevel: 1)
    end
  end
end
