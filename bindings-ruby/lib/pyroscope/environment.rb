# frozen_string_literal: true

module Pyroscope
  # Variables that Ruby code looks at itself. The native part reads the others.
  module Environment
    TRUE = %w[true 1 yes].freeze
    FALSE = %w[false 0 no].freeze

    # Variables that ask for other kinds of profiles. They are often set for programs in all languages, so no warning.
    NOT_YET = %w[ALLOCATION LOCK CONTENTION EXCEPTION HEAP].map { |kind| "PYROSCOPE_PROFILING_#{kind}_ENABLED" }.freeze

    # A boolean of the environment.
    #
    # @param name [String] the variable
    # @param default [Boolean] where it is not set, or empty
    # @return [Boolean]
    # @raise [ArgumentError] it is none
    def self.flag(name, default)
      value = ENV.fetch(name, "").strip
      return default if value.empty?
      return true if TRUE.include?(value.downcase)
      return false if FALSE.include?(value.downcase)

      raise ArgumentError, "#{name}: #{value} is not allowed; allowed: true, false, 1, 0, yes, no"
    end
  end
end
