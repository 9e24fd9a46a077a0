# frozen_string_literal: true

require "sidekiq"
# Without Redis, jobs run in the thread that asks for them: see inline.rb.
require "sidekiq/testing" if ENV["SIDEKIQ_INLINE"]
require "opentelemetry/sdk"
require "opentelemetry-exporter-otlp"
require "opentelemetry-instrumentation-sidekiq"
require "pyroscope-otel"

SERVICE = "log-worker"

Pyroscope.configure do |config|
  config.application_name = SERVICE
  config.server_address = ENV.fetch("PYROSCOPE_SERVER_ADDRESS", "http://localhost:4040")
end

OpenTelemetry::SDK.configure do |sdk|
  sdk.service_name = SERVICE
  sdk.use "OpenTelemetry::Instrumentation::Sidekiq"
  # To OTEL_EXPORTER_OTLP_ENDPOINT.
  exporter = OpenTelemetry::Exporter::OTLP::Exporter.new
  sdk.add_span_processor(OpenTelemetry::SDK::Trace::Export::BatchSpanProcessor.new(exporter))
  sdk.add_span_processor(Pyroscope::Otel::SpanProcessor.new(scope: :all))
end

# `log-worker`: analyses access logs. The spans of a job: that of the instrumentation of Sidekiq, and in it `parse lines`
# and `percentiles`.
class Analyse
  include Sidekiq::Job

  TRACER = OpenTelemetry.tracer_provider.tracer(SERVICE)
  LINE = %r{(\S+) - - \[([^\]]+)\] "(\S+) (\S+) HTTP/1\.1" (\d{3}) (\d+) (\d+\.\d+)}

  # Logs the time below which 99 % of the requests of each path stayed.
  def perform(seed)
    text = make_log(seed)
    times = TRACER.in_span("parse lines") { parse_lines(text) }
    slow = TRACER.in_span("percentiles") { times.transform_values { |values| percentile(values, 0.99) } }
    logger.info("#{slow.size} paths, of which the slowest takes #{slow.values.max} s")
  end

  private

  # What a web server wrote.
  def make_log(seed)
    chance = Random.new(seed)
    Array.new(4_000) do |second|
      format('10.0.%d.%d - - [22/Nov/2026:10:%02d:%02d +0000] "GET /page/%d HTTP/1.1" 200 %d %.4f', chance.rand(9), chance.rand(256),
             second / 60 % 60, second % 60, chance.rand(12), chance.rand(9_000), chance.rand)
    end.join("\n")
  end

  # Seconds of each path's requests.
  def parse_lines(text)
    text.each_line.map { |line| LINE.match(line) }.group_by { |found| found[4] }.transform_values { |some| some.map { |found| found[7].to_f } }
  end

  # By counting, for each value, those below it.
  def percentile(values, part)
    values.sort.find { |value| values.count { |other| other <= value } >= part * values.size }
  end
end
