# frozen_string_literal: true

# Threads end while fibers of theirs are suspended, and others begin at their places: prints for each way how long its spans were, and
# how long the profile has their fibers suspended.

require "fileutils"
require "json"
require "pyroscope-otel"
require "tmpdir"
require_relative "../../support/ruby/profile"

THREADS = 60
SECONDS = 0.003

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

# Each is done in a span of a thread of its own, and is given a queue in which it says that it may be killed.
module Ways
  class << self
    def thread_exits(_ready)
      numbers = Enumerator.new do |yielder|
        3.times { yielder << sleep(SECONDS) }
        Thread.exit
      end
      loop { numbers.next }
    end

    def is_killed(ready)
      numbers = Enumerator.new do |yielder|
        2.times { yielder << sleep(SECONDS) }
        ready << Thread.current
        sleep
      end
      loop { numbers.next }
    end

    def leaves_some_suspended(_ready)
      2.times do
        numbers = Enumerator.new { |yielder| loop { yielder << sleep(SECONDS) } }
        2.times { numbers.next }
      end
    end
  end
end

# Killed in a fiber: what the first one does then begins with no switch.
def span_after_the_kill(name)
  numbers = Enumerator.new do |yielder|
    yielder << 1
    sleep(SECONDS)
    Thread.exit
  end
  2.times { numbers.next }
ensure
  in_span(name) { Enumerator.new { |yielder| loop { yielder << 1 } }.then { |others| 2.times { others.next } } }
end

FOLDER = Dir.mktmpdir
LENGTHS = Hash.new(0.0)
OpenTelemetry.logger = Logger.new(File::NULL)
Pyroscope.configure(application_name: "app", server_address: "file://#{FOLDER}", wall_time: true)
provider = OpenTelemetry::SDK::Trace::TracerProvider.new
provider.add_span_processor(Pyroscope::Otel::SpanProcessor.new(scope: :all))
TRACER = provider.tracer("test")

def in_span(name, &block)
  start = now
  TRACER.in_span(name, &block)
ensure
  LENGTHS[name] += now - start
end

THREADS.times do
  Ways.singleton_methods(false).each do |way|
    ready = Queue.new
    thread = Thread.new { in_span(way.to_s) { Ways.public_send(way, ready) } }
    ready.pop.kill if way == :is_killed
    thread.join
  end
  Thread.new { span_after_the_kill("span_after_the_kill") }.join
end
Pyroscope.stop
awaits = Profile.of_folder(FOLDER).select { |sample| sample.labels["state"] == "await" }
FileUtils.remove_entry(FOLDER)
sums = awaits.group_by { |sample| sample.labels["span_name"] }.transform_values { |samples| samples.sum(&:weight) / 1e9 }
puts JSON.generate(LENGTHS.to_h { |way, length| [way, { length:, suspended: sums.fetch(way, 0) }] })
