# frozen_string_literal: true

require_relative "text"

module Pyroscope
  # What a program sets. Options that were not set, or set to nil, come from the environment, and only then are they what
  # the readers answer. Nothing is checked before the block of {Pyroscope.configure} ends.
  #
  # An option that does not exist is a NoMethodError, as with any object.
  class Config
    # What is allowed in words, and a test of that.
    Kind = Struct.new(:allowed, :test)
    # An option: its default, its kind, and whether the native part takes it.
    Option = Struct.new(:default, :kind, :passed)

    LEVELS = %w[trace debug info warn error].freeze

    TEXT = Kind.new("text", ->(value) { value.is_a?(String) })
    FLAG = Kind.new("true, false", ->(value) { [true, false].include?(value) })
    PAIRS = Kind.new("a Hash", ->(value) { value.is_a?(Hash) })
    ANYTHING = Kind.new("anything", ->(_value) { true })
    LEVEL = Kind.new(LEVELS.join(", "), ->(value) { LEVELS.include?(value.to_s) })
    RATE = Kind.new("1 to 1000 samples a second", ->(value) { value.is_a?(Integer) && value.between?(1, 1000) })
    # The engine says what is out of range, in its own units.
    SECONDS = Kind.new("1 s to 10 min", lambda { |value|
      (value.is_a?(Integer) || (value.is_a?(Float) && value.finite?)) && value.between?(0, 1_000_000)
    })
    TRACE_ID = Kind.new('"auto", true, false', ->(value) { ["auto", true, false].include?(value) })

    NOTHING = {}.freeze

    # All options, by name. Those of Grafana's gem come first, in its order.
    OPTIONS = {
      application_name: Option.new("", TEXT, true),
      app_name: Option.new(nil, TEXT, false),
      server_address: Option.new("http://localhost:4040", TEXT, true),
      basic_auth_username: Option.new("", TEXT, true),
      basic_auth_password: Option.new("", TEXT, true),
      log_level: Option.new("warn", LEVEL, true),
      sample_rate: Option.new(100, RATE, true),
      oncpu: Option.new(true, FLAG, false),
      report_pid: Option.new(false, FLAG, true),
      report_thread_id: Option.new(false, FLAG, true),
      tags: Option.new(NOTHING, PAIRS, true),
      compression: Option.new("gzip", ANYTHING, false),
      report_encoding: Option.new("pprof", ANYTHING, false),
      autoinstrument_rails: Option.new(true, FLAG, false),
      tenant_id: Option.new("", TEXT, true),
      http_headers: Option.new(NOTHING, PAIRS, true),
      auth_token: Option.new(nil, TEXT, false),
      detect_subprocesses: Option.new(nil, ANYTHING, false),
      report_thread_name: Option.new(false, FLAG, true),
      upload_interval: Option.new(10, SECONDS, true),
      span_names: Option.new(true, FLAG, true),
      legacy_labels: Option.new(false, FLAG, true),
      trace_id: Option.new("auto", TRACE_ID, true),
      resource_labels: Option.new(false, FLAG, true),
      wall_time: Option.new(false, FLAG, true),
      enabled: Option.new(true, FLAG, true)
    }.freeze

    # Options whose values are not shown.
    SECRET = %i[basic_auth_password http_headers auth_token].freeze
    # Those and the ones that may hold a credential, where they are no text.
    HIDDEN = [*SECRET, :server_address, :basic_auth_username, :tenant_id].freeze

    OPTIONS.each do |name, option|
      define_method(name) { @given.fetch(name, option.default) }
      define_method(:"#{name}=") { |value| value.nil? ? @given.delete(name) : @given[name] = value }
    end

    def initialize
      @given = {}
    end

    # @param name [Symbol] an option
    # @return [Boolean] whether the program has set it
    def given?(name)
      @given.key?(name)
    end

    # The settings that were given, as the native part takes them.
    #
    # @return [Hash{Symbol => Object}]
    # @raise [ArgumentError] a value is not allowed; the message names the option, the value and what is allowed
    def settings
      @given.each { |name, value| check(name, value) }
      settings = @given.select { |name, _value| OPTIONS.fetch(name).passed }
      settings[:application_name] = app_name if given?(:app_name)
      settings[:http_headers] = { "Authorization" => "Bearer #{auth_token}", **http_headers } if given?(:auth_token)
      settings.transform_values { |value| plain(value) }
    end

    # Without credentials, and short: messages of NoMethodError show it.
    def inspect
      "#<#{self.class} #{@given.except(*SECRET).keys.join(", ")}>"
    end

    private

    def check(name, value)
      kind = OPTIONS.fetch(name).kind
      return if kind.test.call(value)

      shown = HIDDEN.include?(name) ? "the value (not shown)" : value.inspect
      raise ArgumentError, "#{name}: #{shown} is not allowed; allowed: #{kind.allowed}"
    end

    def plain(value)
      case value
      when Hash then Text.pairs(value)
      when String, Symbol then Text.of(value)
      else value
      end
    end
  end
end
