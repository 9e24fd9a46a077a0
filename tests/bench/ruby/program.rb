# frozen_string_literal: true

# What the programs of `ci/bench ruby` share: options, work, clocks, and a profiler that writes into a folder. Each program
# prints one line of JSON.
require "json"
require "tmpdir"
require_relative "../../support/ruby/profile"

# What is measured is the gem, not the environment of whoever measures.
ENV.delete_if { |name, _value| name.start_with?("PYROSCOPE_", "OTEL_") }
ENV["OTEL_TRACES_EXPORTER"] = "none"

module Program
  module_function

  # `--name value` pairs, over the defaults, as the defaults' kinds.
  def options(**defaults)
    given = Hash[*ARGV.drop_while { |argument| !argument.start_with?("--") }]
    given.each do |name, value|
      name = name.delete_prefix("--").to_sym
      default = defaults.fetch(name)
      defaults[name] = default.is_a?(Integer) ? Integer(value) : default.is_a?(Float) ? Float(value) : value
    end
    defaults
  end

  # CPU time of the calling thread, seconds.
  def thread_cpu = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)

  # CPU time of the whole process, nanoseconds.
  def process_cpu_ns = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :nanosecond)

  # Memory of this process that is in RAM, MiB.
  def resident_mib
    GC.start
    File.read("/proc/self/statm").split[1].to_i * 4096 / (1024.0 * 1024.0)
  end

  FUNCTIONS = 100
  # Methods that call each other until the stack is deep, and then a block.
  FUNCTIONS.times do |number|
    eval("def self.f#{number}(depth, &body) = depth.zero? ? body.call : f#{(number * 7 + 1) % FUNCTIONS}(depth - 1, &body)", binding, __FILE__, __LINE__)
  end

  # Calls the block so that what it calls is the frame at this depth. `first` chooses among 100 stacks.
  def at_depth(frames, first = 0, &body)
    send(:"f#{first % FUNCTIONS}", frames - caller.size - 5, &body)
  end

  # Burns CPU at this depth, in 100 functions that take turns.
  def burn_at_depth(frames, seconds)
    ended = thread_cpu + seconds
    number = 0
    at_depth(frames, number += 13) { busy(5) } while thread_cpu < ended
  end

  def median(numbers) = numbers.sort[numbers.size / 2]

  # Starts the profiler, runs the block, and stops it; the samples of this process and its children, and what stats() said
  # before the end.
  def profiled(stats = nil, **settings)
    Dir.mktmpdir do |folder|
      running = Pyroscope::Native.start({ application_name: "bench", server_address: "file://#{folder}", log_level: "error", **settings })
      raise "not running: #{Pyroscope::Native.messages}" unless running

      begin
        yield
      ensure
        Pyroscope.flush(30)
        stats&.update(Pyroscope.stats)
        Pyroscope.stop
      end
      Profile.of_folder(folder)
    end
  end

  def print(record) = puts(JSON.generate(record))
end

# Burns this much CPU time of the calling thread. The leaf of what is sampled then, or nearly.
def busy(milliseconds)
  done = Program.thread_cpu + (milliseconds / 1000.0)
  number = 0
  30.times { number += 1 } while Program.thread_cpu < done
end
