# frozen_string_literal: true

module Pyroscope
  class << self
    # Labels the samples of a block of code:
    #
    #   Pyroscope.tag_wrapper({ tenant: "acme" }) { ... }
    #
    # Tags belong to the fiber that runs the block, as spans do. A nested block adds to the outer one's and restores them at
    # its end, whatever the values. Takes about 4 µs. Each set of values is a series in the server: use values of which
    # there are few. Values become text. A name that is not allowed (see `tags` of {Config}) is left out, and the logger
    # says so once.
    #
    # In a Ractor other than the main one the block runs without.
    #
    # @param tags [Hash]
    # @return [Object] what the block returns
    def tag_wrapper(tags)
      Native.tags_within(Text.pairs(tags)) do |are_there|
        Messages.deliver_due if are_there
        yield
      end
    end

    # Labels the samples of the calling thread until {_remove_tags}, whatever code it runs. Takes (tags), and (thread_id,
    # tags) as the gem of 0.x did: the thread is the calling one in either case. Prefer {tag_wrapper}, whose tags win.
    # Adding twice takes removing twice. A thread keeps the last 64. Without effect while no profiler runs.
    #
    # @param _thread_id [Object] without effect
    # @param tags [Hash]
    # @return [nil]
    def _add_tags(_thread_id = nil, tags) # steep:ignore MethodParameterMismatch
      Text.pairs(tags).each { |name, value| Native.add_thread_tag(name, value) }
      nil
    end

    # Takes back the last {_add_tags} of the same names and values by the calling thread.
    #
    # @param _thread_id [Object] without effect
    # @param tags [Hash]
    # @return [nil]
    def _remove_tags(_thread_id = nil, tags) # steep:ignore MethodParameterMismatch
      Text.pairs(tags).each { |name, value| Native.remove_thread_tag(name, value) }
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
