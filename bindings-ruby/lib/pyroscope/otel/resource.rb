# frozen_string_literal: true

module Pyroscope
  module Otel
    # What the resource of spans says: profiles must say the same, or a span's profile is not found.
    class Resource
      # What "service.name" is where nobody has set it.
      UNKNOWN = "unknown_service"

      # @return [String, nil] service.name
      attr_reader :name
      # @return [Hash{String => String}] labels that profiles should have
      attr_reader :labels

      # @param resource [OpenTelemetry::SDK::Resources::Resource]
      def initialize(resource)
        attributes = resource.attribute_enumerator.to_h
        name = Text.of(attributes["service.name"])
        @name = name unless name.empty?
        @labels = {}
        namespace = Text.of(attributes["service.namespace"])
        @labels["service_namespace"] = namespace unless namespace.empty?
        @labels.update(Native.resource_labels(Text.pairs(attributes))) if Environment.flag("OTEL_PYROSCOPE_RESOURCE_LABELS", false)
      end

      # @return [String, nil] service.name, if somebody chose it
      def chosen_name
        name unless name == UNKNOWN
      end

      # Warns once of labels that profiles lack.
      def compare_labels
        missing = labels.reject { |name, _value| Profiler.label?(name) }
        return if missing.empty?

        Messages.warn_once(
          :labels,
          "the spans' resource has what profiles lack: call configure(tags: #{missing.inspect}), or a span's profile is not found"
        )
      end

      # Warns once if profiles have another name.
      def compare_name
        return if name.nil? || name == Profiler.application_name

        Messages.warn_once(
          :name,
          "profiles are named #{Profiler.application_name.inspect} but the spans' resource has service.name #{name.inspect}: " \
          "a span's profile is only found if both are the same"
        )
      end
    end
  end
end
