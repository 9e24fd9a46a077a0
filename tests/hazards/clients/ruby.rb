# frozen_string_literal: true

# A program that does to its own process what its argument names; see ../hazards.json.
require "json"
require "logger"
require "opentelemetry/sdk"
require "pyroscope/otel"
require "rbconfig"
require "stringio"

# What Ruby has no function for. That it will be a gem of its own is not for the standard error.
told, $VERBOSE = $VERBOSE, nil
require "fiddle"
$VERBOSE = told

module Hazards
  BLOCK, UNBLOCK = 0, 1
  # More than the set of any Linux has bytes.
  ALL_SIGNALS = ("\xFF" * 128).b
  MASK = Fiddle::Function.new(Fiddle::Handle::DEFAULT["pthread_sigmask"], [Fiddle::TYPE_INT, Fiddle::TYPE_VOIDP, Fiddle::TYPE_VOIDP], Fiddle::TYPE_INT)
  ABORT = Fiddle::Function.new(Fiddle::Handle::DEFAULT["abort"], [], Fiddle::TYPE_VOID)
  LOG = StringIO.new
  TRACER = OpenTelemetry::SDK::Trace::TracerProvider.new.tap { |provider| provider.add_span_processor(Pyroscope::Otel::SpanProcessor.new) }
                                                    .tracer("hazards")
  THREADS = []

  module_function

  def run(hazard)
    # It tells of contexts that were left as they were, where Ruby ended a thread in its midst.
    OpenTelemetry.logger = Logger.new(IO::NULL)
    Pyroscope.logger = Logger.new(LOG, formatter: ->(_level, _time, _name, text) { "#{text}\n" })
    @restore_signals = lower(:SIGPENDING, 0) if hazard == "no_pending_signals_are_left"
    configure
    2.times do
      began = Queue.new
      THREADS << Thread.new { load_until_the_end(began) }
      began.pop
    end
    public_send(hazard)
  end

  def configure
    Pyroscope.configure or raise "not started"
  end

  # CPU time of this thread, in a span.
  def burn(seconds)
    TRACER.in_span("burn") do
      stop = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) + seconds
      (1..100).sum { |term| term * term } while Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) < stop
    end
  end

  def load_until_the_end(began)
    burn(0.001)
    began << true
    burn(0.001) until @ends
  end

  # Ends the threads and the profiler, and says what it counted.
  def report
    @ends = true
    Pyroscope.stop
    $stdout.puts(JSON.generate(stats: Pyroscope.stats, messages: LOG.string.lines(chomp: true)))
    $stdout.flush
  end

  def burn_until_told(words)
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 20
    until LOG.string.include?(words) || Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
      burn(0.02)
      Pyroscope.stats # asks for messages
    end
  end

  # Sets a limit of this process; returns what restores it.
  def lower(limit, soft)
    before = Process.getrlimit(limit)
    Process.setrlimit(limit, soft, before.last)
    -> { Process.setrlimit(limit, *before) }
  end

  def change_mask(how)
    MASK.call(how, ALL_SIGNALS, nil).zero? or raise "pthread_sigmask"
  end

  def become_another
    change_mask(BLOCK)
    burn(0.05)
    program = <<~'RUBY'
      require "fiddle"
      mask = Fiddle::Function.new(Fiddle::Handle::DEFAULT["pthread_sigmask"], [Fiddle::TYPE_INT, Fiddle::TYPE_VOIDP, Fiddle::TYPE_VOIDP], Fiddle::TYPE_INT)
      mask.call(1, ("\xFF" * 128).b, nil)
      exit!(7)
    RUBY
    Kernel.exec({ "RUBYOPT" => nil }, RbConfig.ruby, "-W0", "--disable-gems", "-e", program)
  end

  def exec = become_another
  def exec_in_a_thread = Thread.new { become_another }.join

  def exit
    burn(0.03)
    Kernel.exit(4)
  end

  def leave_at_once
    burn(0.03)
    exit!(5)
  end

  def exit_from_a_signal_handler
    trap(:USR1) { Kernel.exit(6) }
    burn(0.03)
    Process.kill(:USR1, Process.pid)
    sleep
  end

  def abort
    burn(0.03)
    ABORT.call
  end

  def killed_by_a_signal
    burn(0.03)
    trap(:TERM, "SYSTEM_DEFAULT")
    Process.kill(:TERM, Process.pid)
    sleep
  end

  def killed_at_once
    burn(0.03)
    Process.kill(:KILL, Process.pid)
  end

  def spawn_and_system
    10.times do
      Process.wait(spawn("true"))
      raise "true: #{$?}" unless $?.success?

      system("exit 3")
      raise "exit 3: #{$?}" unless $?.exitstatus == 3
    end
    report
  end

  # Burns until this process has one.
  def sample?
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 20
    count = -> { Pyroscope.stats[:taken][:samples] }
    burn(0.005) until count.call.positive? || Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
    count.call.positive?
  end

  def child_has_sample?(generations)
    child = fork { exit!(sample? && (generations == 1 || child_has_sample?(generations - 1))) }
    Process.wait2(child).last.success?
  end

  def fork_in_a_thread
    seen = Thread.new { Array.new(3) { child_has_sample?(2) } }.value
    raise seen.inspect unless seen.all?

    report
  end

  def daemonize
    fork && exit!(0)
    Process.setsid
    fork && exit!(0)
    burn(0.03)
    report
    exit!(0)
  end

  def late_signals_after_a_stop
    change_mask(BLOCK)
    burn(0.05)
    Pyroscope.stop
    change_mask(UNBLOCK)
    burn(0.03)
    report
  end

  def start_and_stop_again_and_again
    @ends = true
    THREADS.each(&:join)
    left = -> { [*%w[fd task].map { |name| Dir.children("/proc/self/#{name}").size }, File.read("/proc/self/timers").scan("ID:").size] }
    before = nil
    50.times do |number|
      Pyroscope.stop
      before = left.call if number == 10
      configure
    end
    Pyroscope.stop
    # Ruby keeps the native threads of its own that ended for a while.
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 10
    is_more = -> { left.call.zip(before).any? { |now, at_first| now > at_first } }
    Thread.pass while is_more.call && Process.clock_gettime(Process::CLOCK_MONOTONIC) < deadline
    raise "#{before} #{left.call}" if is_more.call

    report
  end

  def no_files_are_left
    restore = lower(:NOFILE, Dir.children("/proc/self/fd").size - 1)
    burn_until_told("/proc/self/task")
    restore.call
    burn(0.03)
    report
  end

  def no_pending_signals_are_left
    burn_until_told("ulimit -i")
    @restore_signals.call
    burn(0.03)
    report
  end

  def a_file_may_not_grow
    restore = lower(:FSIZE, 64)
    burn(0.03)
    Pyroscope.flush(5)
    restore.call
    burn(0.03)
    report
  end
end

Hazards.run(ARGV.fetch(0))
