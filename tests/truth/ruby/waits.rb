# frozen_string_literal: true

# Waits of known kinds, each in a span and a method of its own: prints what each took by its own clock, what the profile has of it, and
# what the spans say of it themselves.

require "fileutils"
require "io/wait"
require "json"
require "monitor"
require "pyroscope-otel"
require "socket"
require "timeout"
require "tmpdir"
require "zlib"
require_relative "../../support/ruby/profile"
require_relative "../../support/ruby/waiting"

# How often each is waited for, and how long at least.
TIMES = 5
SECONDS = 0.03
# How long another thread burns with the GVL: who is woken meanwhile has a processor of its own by then, on a busy machine too.
SPUN = 0.1

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
def cpu = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)

def later(&) = Waiting.later(SECONDS, &)

def spin(seconds)
  done = now + seconds
  nil while now < done
end

# Methods are named after the state that their spans are in.
module Waits
  FOLDER = Dir.mktmpdir
  DATA = Random.new(1).bytes(1_000_000)
  # A child ends when it has read a line: the shell reads it, for which Ruby calls the shell where there is a semicolon.
  CHILD = "read line;"
  CHILDREN = Queue.new

  class << self
    def sleep_for_a_time = sleep(SECONDS)

    def sleep_until_woken
      thread = Thread.current
      later { thread.wakeup }
      sleep
    end

    def sleep_until_timeout
      Timeout.timeout(SECONDS) { sleep }
    rescue Timeout::Error
      nil
    end

    def io_read
      reader, writer = IO.pipe
      later { writer << "x" }
      reader.read(1)
    end

    def io_write_to_a_full_pipe
      reader, writer = IO.pipe
      later { reader.read(70_000) }
      writer.write("x" * 70_000)
    end

    def io_recv
      ours, theirs = UNIXSocket.pair
      later { theirs << "x" }
      ours.recv(1)
    end

    def io_accept
      server = TCPServer.new("127.0.0.1", 0)
      later { TCPSocket.new("127.0.0.1", server.addr[1]) }
      server.accept
    end

    def io_select
      reader, writer = IO.pipe
      later { writer << "x" }
      IO.select([reader])
    end

    def io_wait_readable
      reader, _writer = IO.pipe
      reader.wait_readable(SECONDS)
    end

    def io_wait
      reader, _writer = IO.pipe
      reader.wait(SECONDS)
    end

    def io_foreach
      path = File.join(FOLDER, "fifo")
      File.mkfifo(path) unless File.exist?(path)
      writer = File.open(path, File::RDWR)
      writes = later { writer.syswrite("x\n") }
      IO.foreach(path) { break }
      writes.join
      writer.close
    end

    def lock_mutex
      Waiting.held(SECONDS).synchronize { nil }
    end

    def lock_condition
      mutex = Mutex.new
      condition = ConditionVariable.new
      later { mutex.synchronize { condition.signal } }
      mutex.synchronize { condition.wait(mutex) }
    end

    def lock_condition_for_a_time
      mutex = Mutex.new
      mutex.synchronize { ConditionVariable.new.wait(mutex, SECONDS) }
    end

    def lock_monitor
      monitor = Monitor.new
      condition = monitor.new_cond
      later { monitor.synchronize { condition.signal } }
      monitor.synchronize { condition.wait }
    end

    def lock_queue
      queue = Queue.new
      later { queue << 1 }
      queue.pop
    end

    def lock_join = later { nil }.join

    def lock_file
      first, second = Array.new(2) { File.open(File.join(FOLDER, "locked"), "w") }
      first.flock(File::LOCK_EX)
      later { first.close }
      second.flock(File::LOCK_EX)
      second.close
    end

    def child_system
      reader, writer = IO.pipe
      later { writer << "\n" }
      system(CHILD, in: reader)
    end

    # The method's receiver is an IO.
    def child_of_an_io = $stdin.instance_eval { `sleep #{SECONDS}` }

    def child_wait
      child, writer = CHILDREN.pop
      later { writer << "\n" }
      Process.wait(child)
    end

    # The other thread does not let the GVL go in so short a time.
    def gvl_after_a_sleep
      thread = Thread.new { spin(SPUN) }
      sleep(0.0001) while thread.alive?
    end

    # Woken while another thread burns: a wait for a lock, and then for the GVL.
    def gvl_after_a_wake_up
      queue = Queue.new
      thread = Thread.new do
        sleep(0.01)
        queue << 1
        spin(SPUN)
      end
      queue.pop
      thread.join
    end

    # In a fiber of its own, which goes on later.
    def await_yield = Fiber.yield

    # What it works for the fiber that asks is no wait of that one.
    def cpu_of_an_enumerator
      numbers = Enumerator.new { |yielder| loop { yielder << spin(0.01) } }
      3.times { numbers.next }
    end

    # Their fibers are left suspended and collected, and others begin at their places.
    def cpu_of_enumerators_that_are_left
      GC.start
      5.times do
        numbers = Enumerator.new { |yielder| loop { yielder << spin(0.002) } }
        3.times { numbers.next }
      end
    end

    # CPU time without the GVL is no wait.
    def cpu_without_gvl = Zlib.deflate(DATA)
  end
end

ways = Waits.singleton_methods(false).map(&:to_s)
OpenTelemetry.logger = Logger.new(File::NULL)
Pyroscope.configure(application_name: "app", server_address: "file://#{Waits::FOLDER}", wall_time: true)
provider = OpenTelemetry::SDK::Trace::TracerProvider.new
provider.add_span_processor(Pyroscope::Otel::SpanProcessor.new(scope: :all, time_attributes: true))
exporter = OpenTelemetry::SDK::Trace::Export::InMemorySpanExporter.new
provider.add_span_processor(OpenTelemetry::SDK::Trace::Export::SimpleSpanProcessor.new(exporter))
tracer = provider.tracer("test")
taken = ways.to_h { |way| [way, [0.0, 0.0]] }
TIMES.times do
  ways.each do |way|
    if way == "child_wait"
      reader, writer = IO.pipe
      Waits::CHILDREN << [spawn(Waits::CHILD, in: reader), writer]
    end
    fiber = Fiber.new do
      tracer.in_span(way) do
        before = [now, cpu]
        Waits.public_send(way)
        taken[way] = taken[way].zip([now, cpu], before).map { |sum, after, start| sum + after - start }
      end
    end
    fiber.resume
    next unless fiber.alive?

    sleep(SECONDS)
    fiber.resume
  end
end
Pyroscope.stop
samples = Profile.of_folder(Waits::FOLDER).select { |sample| sample.values.size == 2 && sample.labels["state"] != "cpu" }
FileUtils.remove_entry(Waits::FOLDER)
seen = samples.map do |sample|
  names = sample.functions.map { |name| name[/\w+\z|`\z|\A\(.*\)\z/] || name }
  { span: sample.labels["span_name"], state: sample.labels["state"], leaf: names[0], method: names[1], within: names & ways, seconds: sample.weight / 1e9 }
end
# Sums of all spans of a way, and the share of one that all of its states have at most.
said = exporter.finished_spans.group_by(&:name).transform_values do |spans|
  times = spans.map { |span| span.attributes.to_h.filter_map { |key, ns| [key[/\Apyroscope\.time\.(?!cpu)\K\w+/], ns / 1e9] if key.match?(/\Apyroscope\.time\.(?!cpu)/) }.to_h }
  shares = spans.zip(times).map { |span, states| states.values.sum * 1e9 / (span.end_timestamp - span.start_timestamp) }
  { states: times.reduce { |one, other| one.merge(other) { |_, a, b| a + b } }, share: shares.max }
end
puts JSON.generate(taken:, seen:, said:)
