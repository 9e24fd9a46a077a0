# frozen_string_literal: true

# What the programs share that look where the time of spans went: a tracer, and the nanoseconds of a profile by span and state.
require_relative "program"
require "opentelemetry/sdk"
require "pyroscope-otel"

OpenTelemetry.logger = Logger.new(File::NULL)

module Spans
  PROVIDER = OpenTelemetry::SDK::Trace::TracerProvider.new
  PROVIDER.add_span_processor(Pyroscope::Otel::SpanProcessor.new)
  TRACER = PROVIDER.tracer("bench")

  module_function

  def now_ns = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
  def thread_cpu_ns = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)

  # Runs the block while its time is measured: the samples of wall time of what spans' own flows did.
  def profiled(stats = nil, **settings, &)
    Program.profiled(stats, wall_time: true, **settings, &).select { |sample| sample.labels.key?("state") && !sample.labels.key?("flow") }
  end

  # Nanoseconds by span name and state.
  def sums(samples)
    samples.group_by { |sample| sample.labels["span_name"] }.transform_values do |of_span|
      of_span.group_by { |sample| sample.labels["state"] }.transform_values { |of_state| of_state.sum(&:weight) }
    end
  end
end
