# frozen_string_literal: true

# Spans whose context is handed to other threads and processes: prints what each took by its own clock, and what the profile has of it.

require "etc"
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

# How long this thread has stood in the run queue, and for how long the hypervisor has kept the machine's processors to itself, in which
# no thread's time goes on.
def without_processor
  ticks = File.open("/proc/stat", &:gets).split[8].to_f
  File.read("/proc/thread-self/schedstat").split[1].to_i / 1e9 + ticks / Etc.sysconf(Etc::SC_CLK_TCK)
end

def work
  burn(BURNT)
  sleep(SLEPT)
end

FOLDER = Dir.mktmpdir
# By span: how long it was current, and for how long its thread had no processor meanwhile.
TAKEN = Hash.new { |taken, name| taken[name] = [0.0, 0.0] }

def noting(name)
  before = [now, without_processor]
  yield
  TAKEN[name] = TAKEN[name].zip([now, without_processor], before).map { |sum, after, start| sum + after - start }
end

# Burns outside of spans until this thread's timer has told of what it burnt before: a busy kernel is late.
def settle
  taken = -> { Pyroscope.stats[:taken][:samples] }
  before = taken.call
  burn(0.005) until taken.call > before
end

def burn(seconds)
  done = cpu + seconds
  nil while cpu < done
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

# CPU seconds of the other thread beside its own span, in the one around it.
BESIDE = []

# A span that begins on the other thread is that one's.
def inner
  span("inner_outer") do
    other = in_thread do
      within = nil
      span("inner") do
        began = cpu
        work
        within = cpu - began
      end
      BESIDE << (cpu - within)
    end
    other.join
  end
end

# Started here, current on another thread alone.
def moved
  started = TRACER.start_span("moved")
  Thread.new { OpenTelemetry::Trace.with_span(started) { noting("moved") { work } } }.join
  started.finish
end

# A child process goes on with a copy of the span, which its parent ends.
def forked
  span("forked") do
    child = fork do
      work
      Pyroscope.stop
      exit!
    end
    Process.wait(child)
  end
end

OpenTelemetry.logger = Logger.new(File::NULL)
Pyroscope.configure(application_name: "app", server_address: "file://#{FOLDER}", sample_rate: 500, wall_time: true)
provider = OpenTelemetry::SDK::Trace::TracerProvider.new
provider.add_span_processor(Pyroscope::Otel::SpanProcessor.new(scope: :all))
TRACER = provider.tracer("test")
TIMES.times do
  %i[thread pool inner moved forked].each do |way|
    send(way)
    settle
  end
end
Pyroscope.stop
samples = Profile.of_folder(FOLDER)
FileUtils.remove_entry(FOLDER)
seen = samples.filter_map do |sample|
  next unless sample.labels["span_name"]

  { span: sample.labels["span_name"], state: sample.labels["state"], root: sample.functions.last,
    inside: sample.functions[...-1].include?("(concurrent task)"), flow: sample.labels["flow"], seconds: sample.weight / 1e9 }
end
puts JSON.generate(taken: TAKEN, beside: BESIDE.sum, seen:)
