# frozen_string_literal: true

module Pyroscope
  # The version of this gem, and of the engine in it.
  VERSION = "2.0.0"
end
