# frozen_string_literal: true

require_relative "telemetry"
require_relative "search"

Search.tracer = Telemetry.start("search")
run Search
