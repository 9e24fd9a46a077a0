# frozen_string_literal: true

require "opentelemetry/sdk"
require "opentelemetry-exporter-otlp"
require "opentelemetry-instrumentation-rack"
require "opentelemetry-instrumentation-sinatra"
require "pyroscope-otel"
require "sinatra/base"

SERVICE = "orders"

Pyroscope.configure do |config|
  config.application_name = SERVICE
  config.server_address = ENV.fetch("PYROSCOPE_SERVER_ADDRESS", "http://localhost:4040")
end

OpenTelemetry::SDK.configure do |sdk|
  sdk.service_name = SERVICE
  sdk.use_all
  # To OTEL_EXPORTER_OTLP_ENDPOINT.
  exporter = OpenTelemetry::Exporter::OTLP::Exporter.new
  sdk.add_span_processor(OpenTelemetry::SDK::Trace::Export::BatchSpanProcessor.new(exporter))
  sdk.add_span_processor(Pyroscope::Otel::SpanProcessor.new(scope: :all))
end
at_exit { OpenTelemetry.tracer_provider.shutdown(timeout: 5) }

# `orders`: a service that reads a file of orders and shows a summary of one region.
#
# The spans of a request: `GET /summary/:region` from the instrumentation of Sinatra, and in it `read orders`, `summarise`
# and `render`, each with a flame graph of its own.
class Orders < Sinatra::Base
  REGIONS = %w[north south west].freeze
  TRACER = OpenTelemetry.tracer_provider.tracer(SERVICE)
  Order = Struct.new(:region, :product, :cents)
  Row = Struct.new(:product, :orders, :turnover, :median)

  # The orders as another system exports them: lines of text.
  def self.make_file
    chance = Random.new(1)
    products = Array.new(40) { |number| "product #{number}" }
    Array.new(15_000) { "#{REGIONS.sample(random: chance)}, #{products.sample(random: chance)}, #{chance.rand(100..99_999) / 100.0}" }.join("\n")
  end

  FILE = make_file.freeze

  set :host_authorization, permitted_hosts: []

  # All of it again for each request, as nobody thought of a cache.
  get "/summary/:region" do |region|
    halt 404 unless REGIONS.include?(region)
    orders = TRACER.in_span("read orders") { read_orders(FILE) }
    rows = TRACER.in_span("summarise") { summarise(orders, region) }
    TRACER.in_span("render") { render_page(region, rows) }
  end

  private

  # Every line, of whatever region.
  def read_orders(text)
    text.each_line.map { |line| parse(line) }
  end

  def parse(line)
    region, product, price = line.split(",").map(&:strip)
    Order.new(region.downcase, product, (price.to_r * 100).to_i)
  end

  # What was sold of each product in a region.
  def summarise(orders, region)
    sold = orders.select { |order| order.region == region }.group_by(&:product)
    sold.map do |product, some|
      cents = some.map(&:cents).sort
      Row.new(product, cents.size, cents.sum / 100.0, cents[cents.size / 2] / 100.0)
    end
  end

  def render_page(region, rows)
    lines = rows.sort_by(&:product).map do |row|
      format("<tr><td>%s</td><td>%d</td><td>%.2f</td><td>%.2f</td></tr>", row.product.capitalize, row.orders, row.turnover, row.median)
    end
    "<!doctype html><title>#{region}</title><table>#{lines.join}</table>"
  end
end
