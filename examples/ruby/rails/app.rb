# frozen_string_literal: true

require "action_controller/railtie"
require "opentelemetry/sdk"
require "opentelemetry-exporter-otlp"
require "opentelemetry-instrumentation-rails"
require "pyroscope-otel"

SERVICE = "routes"

# Also tags samples with the action that runs, here action="ways/show".
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

# `routes`: finds the shortest way through a city, in one file.
#
# The spans of a request: that of the instrumentation of Rails, and in it `load map` and `shortest way`.
class Routes < Rails::Application
  config.load_defaults 8.1
  config.eager_load = true
  config.hosts.clear
  config.logger = Logger.new($stdout)
  config.log_level = :warn
  config.secret_key_base = "not a secret: there are no sessions"
  routes.append { get "/way/:from/:to" => "ways#show" }
end

# A city of streets in a grid, some of which are slow.
class City
  SIDE = 50

  # A crossing's neighbours with the minutes that the street takes, as text of another system.
  def self.make_map
    chance = Random.new(3)
    Array.new(SIDE * SIDE) do |crossing|
      x, y = crossing % SIDE, crossing / SIDE
      neighbours = [[x + 1, y], [x - 1, y], [x, y + 1], [x, y - 1]].select { |around| around.all? { |at| at.between?(0, SIDE - 1) } }
      "#{crossing}: #{neighbours.map { |(to_x, to_y)| "#{to_y * SIDE + to_x}=#{chance.rand(1..9)}" }.join(" ")}"
    end.join("\n")
  end

  MAP = make_map.freeze

  def initialize(text = MAP)
    @streets = text.each_line.to_h do |line|
      crossing, streets = line.split(": ")
      [crossing.to_i, streets.split.to_h { |street| street.split("=").map(&:to_i) }]
    end
  end

  # Dijkstra's, with a list in place of a heap.
  def shortest_way(from, to)
    minutes = { from => 0 }
    open = [from]
    done = {}
    until open.empty?
      crossing = nearest(open, minutes)
      return minutes[crossing] if crossing == to

      open.delete(crossing)
      done[crossing] = true
      @streets.fetch(crossing).each do |other, street|
        next if done[other]

        open << other unless minutes.key?(other)
        minutes[other] = [minutes.fetch(other, Float::INFINITY), minutes[crossing] + street].min
      end
    end
    nil
  end

  private

  def nearest(open, minutes)
    open.min_by { |crossing| minutes[crossing] }
  end
end

class WaysController < ActionController::API
  TRACER = OpenTelemetry.tracer_provider.tracer(SERVICE)

  # The map is read again for each request, as nobody thought of a cache.
  def show
    city = TRACER.in_span("load map") { City.new }
    minutes = TRACER.in_span("shortest way") { city.shortest_way(params.expect(:from).to_i, params.expect(:to).to_i) }
    render json: { minutes: minutes }
  end
end

Routes.initialize!
