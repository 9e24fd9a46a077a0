# frozen_string_literal: true

# Spans whose context is handed to other threads: prints what each took by its own clock, and what the profile has of it.

require "fileutils"
require "json"
require "pyroscope-otel"
require "tmpdir"
require_relative "../../support/ruby/profile"

TIMES = 5
# What a thread burns, and then sleeps.
BURNT = 0.03
SLEPT = 0.03

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
def cpu = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)

def queued = File.read("/proc/thread-self/schedstat").split[1].to_i / 1e9

def work
  done = cpu + BURNT
  nil while cpu < done
  sleep(SLEPT)
end

FOLDER = Dir.mktmpdir
# By span: how long it was current, and for how long its thread had no processor meanwhile.
TAKEN = Hash.new { |taken, name| taken[name] = [0.0, 0.0] }

def noting(name)
  before = [now, queued]
  yield
  TAKEN[name] = TAKEN[name].zip([now, queued], before).map { |sum, after, start| sum + after - start }
end

def span(name)
  TRACER.in_span(name) { noting(name) { yield } }
end

# Another thread with the context of this one.
def in_thread
  context = OpenTelemetry::Context.current
  Thread.new { OpenTelemetry::Context.with_current(context) { yield } }
end

def thread
  span("thread") do
    other = in_thread { work }
    sleep(0.01)
    other.join
  end
end

# Two at a time, with a block of their own within.
def pool
  span("pool") do
    others = Array.new(2) { in_thread { OpenTelemetry::Context.with_value("key", 1) { work } } }
    work
    others.each(&:join)
  end
end

# A span that begins on the other thread is that one's.
def inner = span("inner_outer") { in_thread { span("inner") { work } }.join }

# Started here, current on another thread alone.
def moved
  started = TRACER.start_span("moved")
  Thread.new { OpenTelemetry::Trace.with_span(started) { noting("moved") { work } } }.join
  started.finish
end

OpenTelemetry.logger = Logger.new(File::NULL)
Pyroscope.configure(application_name: "app", server_address: "file://#{FOLDER}", sample_rate: 500, wall_time: true)
provider = OpenTelemetry::SDK::Trace::TracerProvider.new
provider.add_span_processor(Pyroscope::Otel::SpanProcessor.new(scope: :all))
TRACER = provider.tracer("test")
TIMES.times { %i[thread pool inner moved].each { |way| send(way) } }
Pyroscope.stop
samples = Profile.of_folder(FOLDER)
FileUtils.remove_entry(FOLDER)
seen = samples.filter_map do |sample|
  next unless sample.labels["span_name"]

  { span: sample.labels["span_name"], state: sample.labels["state"], root: sample.functions.last,
    inside: sample.functions[...-1].include?("(concurrent task)"), flow: sample.labels["flow"], seconds: sample.weight / 1e9 }
end
puts JSON.generate(taken: TAKEN, seen:)
