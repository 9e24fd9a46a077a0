# frozen_string_literal: true

# What the profiler costs a service: CPU time an iteration at 100 Hz, with it against without.
#
#   ruby overhead.rb --server URL [--threads N] [--pairs N] [--slice SECONDS]      prints JSON, percent
#
# Threads, each 55 frames deep, handle requests of a millisecond: a root span, three children, and what handlers do
# (JSON, a regular expression, sorting, text, a hash). All in one process, as two processes differ by more than the
# profiler costs. Slices of a fixed number of requests run without, with, with, without the profiler, and so on (ABBA), so
# that a machine that slows down meets both alike. A slice without has neither profiler nor span processor; of what was put
# before OpenTelemetry's methods, which stays, it has eight calls of 0.1 µs a request. CPU time is the process's, of all its
# threads, the profiler's among them.
#
# Each slice with starts a profiler anew. What is due once a window of 10 s in a service is counted at that rate: looking up
# names, which happens while requests are handled before the clock is read, and the end of a window (cut, encoding, upload),
# a `flush` after it.
#
# A pair are two neighbouring slices, one with and one without; `pairs` is the mean of their relative differences in
# percent, with its interval of 95 % (Student's t). The control pairs the two slices without of neighbouring blocks by the
# same formula. `counted` is what the profiler says of itself: time in handlers, draining, its own threads, and what is due
# once a window.
require_relative "program"
require "digest"
require "opentelemetry/sdk"
require "pyroscope-otel"

OpenTelemetry.logger = Logger.new(File::NULL)

module Overhead
  FRAMES = 55
  RATE = 100
  WINDOW = 10.0
  # Of a slice. It has to take longer than the engine waits from one drain to the next, 0.1 s.
  WARMUP = 0.6
  # Student's t for 95 %, by degrees of freedom; between them the next lower one, which gives the wider interval.
  T_95 = { 1 => 12.71, 2 => 4.303, 3 => 3.182, 5 => 2.571, 8 => 2.306, 12 => 2.179, 20 => 2.086, 29 => 2.045, 40 => 2.021, 60 => 2.0 }.freeze
  BODY = JSON.generate({ lines: Array.new(120) { |n| { sku: "item#{n}", price: 100 + n * 7 % 31, count: n % 5, tag: "tag#{n % 3}" } } }).freeze

  # What a request does.
  module Work
    module_function

    def parse = JSON.parse(BODY).fetch("lines").each { |line| line["number"] = line["sku"][/\d+/].to_i }

    def price(lines)
      totals = Hash.new(0)
      4.times { lines.sort_by { |line| [line["price"], -line["number"]] }.each { |line| totals[line["tag"]] += line["price"] * line["count"] } }
      totals
    end

    def render(lines, totals)
      rows = lines.map { |line| format("<tr><td>%10s</td><td>%.2f</td></tr>", line["sku"], line["price"] / 100.0) }
      Digest::SHA256.hexdigest(rows.join("\n")) + JSON.generate(totals)
    end

    def handle(tracer)
      tracer.in_span("POST /order") do
        lines = tracer.in_span("parse") { parse }
        totals = tracer.in_span("price") { price(lines) }
        tracer.in_span("render") { render(lines, totals) }
      end
    end

    def at_depth(frames, &body) = frames <= 0 ? body.call : at_depth(frames - 1, &body)
  end

  # Threads that wait, at their depth, for slices of requests.
  class Service
    attr_reader :threads

    def initialize(threads)
      @threads = threads
      @done = Queue.new
      @orders = Array.new(threads) { Queue.new }
      @running = @orders.map { |orders| Thread.new { Work.at_depth(FRAMES - 8) { serve(orders) } } }
      @running.each { |thread| thread.abort_on_exception = true }
    end

    # All threads together handle that many requests.
    def slice(tracer, requests)
      @orders.each { |orders| orders << [tracer, (requests.to_f / threads).ceil] }
      threads.times { @done.pop }
    end

    def end
      @orders.each(&:close)
      @running.each(&:join)
    end

    private

    def serve(orders, work = Work)
      while (tracer, requests = orders.pop)
        requests.times { work.handle(tracer) }
        @done << true
      end
    end
  end

  class Slices
    attr_reader :requests

    def initialize(server, service, requests)
      @server, @service, @requests = server, service, requests
      @bare = provider.tracer("bare")
      @counts = Hash.new { |all, side| all[side] = Hash.new(0) }
    end

    # The interpreter compiles and fills its caches, and then a request's time says how many make a slice.
    def last(seconds)
      2.times { without }
      @requests = [(seconds * 1e9 / without / @service.threads).ceil, 1].max * @service.threads
    end

    # CPU nanoseconds a request.
    def without = time(@bare)

    def with
      profiled do |tracer|
        before = nil
        cpu_ns = time(tracer) { before = Pyroscope.stats } * requests
        stats = Pyroscope.stats
        flush = Program.process_cpu_ns
        Pyroscope.flush(30)
        window_ns = (Program.process_cpu_ns - flush + before[:drain_ns]) * (cpu_ns / 1e9 / WINDOW)
        count(:with, before, stats, cpu_ns, window_ns)
        (cpu_ns + window_ns) / requests
      end
    end

    def forget_counts = @counts.clear

    # Samples in a second of CPU time, and what the profiler says that it used, in percent of that time.
    def counted(side)
      samples, counted_ns, cpu_ns = @counts[side].values_at(:samples, :counted_ns, :cpu_ns)
      { samples_a_second: samples / (cpu_ns / 1e9), counted: 100.0 * counted_ns / cpu_ns }
    end

    private

    def provider = OpenTelemetry::SDK::Trace::TracerProvider.new

    # The block gets a tracer, with a profiler that runs meanwhile.
    def profiled(**settings)
      Pyroscope.configure(application_name: "overhead", server_address: @server, sample_rate: RATE, upload_interval: 600, log_level: "error", **settings) ||
        raise("it does not run")
      yield provider.tap { |made| made.add_span_processor(Pyroscope::Otel::SpanProcessor.new) }.tracer("with")
    ensure
      Pyroscope.stop
    end

    # Threads get their timers, and functions their names, before the clock is read.
    def time(tracer, warmup: WARMUP, finish: nil)
      @service.slice(tracer, (requests * warmup).ceil)
      GC.start
      yield if block_given?
      began = Program.process_cpu_ns
      @service.slice(tracer, requests)
      finish&.call
      (Program.process_cpu_ns - began) / requests.to_f
    end

    def count(side, before, after, cpu_ns, window_ns = 0)
      counts = @counts[side]
      counts[:samples] += after[:taken][:samples] - before[:taken][:samples]
      counts[:counted_ns] += %i[handler_ns drain_ns own_cpu_ns].sum { |name| after[name] - before[name] } + window_ns
      counts[:cpu_ns] += cpu_ns
    end
  end

  module_function

  # Blocks of four slices: two pairs each, and one of the control between two blocks.
  def measure(slices, pairs)
    2.times { slices.with }
    slices.forget_counts
    over, control, bare, last = [], [], [], nil
    (pairs / 2.0).ceil.times do
      first, with1, with2, second = slices.without, slices.with, slices.with, slices.without
      over.push(100 * (with1 / first - 1), 100 * (with2 / second - 1))
      bare.push(first, second)
      # Forwards and backwards in turn, so that a drift falls out of the control too.
      control << (100 * (first / last - 1) * (control.size.even? ? 1 : -1)) if last
      last = second
    end
    { pairs: interval(over), control: interval(control), request_us: Program.median(bare) / 1e3, requests_a_slice: slices.requests }
  end

  def interval(values)
    mean = values.sum / [values.size, 1].max
    return { mean: mean, half: nil, count: values.size } if values.size < 2

    deviation = Math.sqrt(values.sum { |value| (value - mean)**2 } / (values.size - 1))
    t = T_95.select { |degrees, _| degrees < values.size }.max.last
    { mean: mean, half: t * deviation / Math.sqrt(values.size), count: values.size }
  end
end

if $PROGRAM_NAME == __FILE__
  options = Program.options(server: "none", threads: 8, pairs: 32, slice: 0.2)
  service = Overhead::Service.new(options[:threads])
  slices = Overhead::Slices.new(options[:server], service, 200 / options[:threads] * options[:threads])
  slices.last(options[:slice])
  record = Overhead.measure(slices, options[:pairs])
  service.end
  Program.print({ **record, **slices.counted(:with) })
end
