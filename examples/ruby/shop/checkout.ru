# frozen_string_literal: true

require_relative "telemetry"
require_relative "checkout"

Checkout.tracer = Telemetry.start("checkout")
run Checkout
