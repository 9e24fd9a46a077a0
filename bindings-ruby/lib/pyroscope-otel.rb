# frozen_string_literal: true

require_relative "pyroscope"
require_relative "pyroscope/otel"
