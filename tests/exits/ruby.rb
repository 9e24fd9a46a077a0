# frozen_string_literal: true

# A program that ends, forks, stops or is stopped while the profiler is busy: in which shape, its first argument says.
#
#     ruby ruby.rb SHAPE SEED
#
# shapes.json says how each must end; exits.py runs them. The instants are random, by the seed.
require "fileutils"
require "logger"
require "opentelemetry/sdk"
require "pyroscope/otel"
require "rbconfig"
require "timeout"
require "zlib"

module Exits
  CHANCE = Random.new(Integer(ARGV.fetch(1)))
  WALL_TIME = CHANCE.rand < 0.5
  TRACER = OpenTelemetry::SDK::Trace::TracerProvider.new
    .tap do |provider|
      scope, inherit_fibers, time_attributes = %i[root all].sample(random: CHANCE), CHANCE.rand < 0.5, WALL_TIME && CHANCE.rand < 0.5
      provider.add_span_processor(Pyroscope::Otel::SpanProcessor.new(scope:, inherit_fibers:, time_attributes:))
    end
    .tracer("exits")
  ADDRESS = CHANCE.rand < 0.3 ? "file://#{Dir.pwd}/profiles" : "none"
  HUNG, WRONG = 97, 98
  Overdue = Class.new(StandardError)

  module_function

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  def start = Pyroscope.configure(application_name: "exits", server_address: ADDRESS, sample_rate: 1000, wall_time: WALL_TIME)

  # Where another thread does the same at this instant, one of them is told no.
  def start_or_not
    start
  rescue Pyroscope::Error, ArgumentError, RuntimeError
    false
  end

  def expect(is_so, words, code = WRONG)
    return if is_so

    $stderr.write("wrong: #{words}\n")
    exit!(code)
  end

  def pause(most = 0.15) = sleep(CHANCE.rand * most)

  def burn(seconds)
    stop = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) + seconds
    (1..100).sum { |term| term * term } while Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) < stop
  end

  def spans = TRACER.in_span("outer") { TRACER.in_span("inner") { burn(0.0005) } }
  def tags = Pyroscope.tag_wrapper({ "tenant" => rand(7).to_s }) { TRACER.in_span("tagged") { burn(0.0005) } }
  def compress = Zlib.deflate("spanprof" * 20_000)
  def waits = TRACER.in_span("waits") { sleep(0.0002).then { IO.pipe { |out, into| into.write("a").then { out.read(1) } } } }
  def garbage = Array.new(300) { |number| [number.to_s * 3] }
  def fibers = 3.times.map { Fiber.new { spans.then { Fiber.yield } } }.each(&:resume).each(&:resume)
  def raises = (TRACER.in_span("fails") { catch(:done) { throw :done } && raise(IOError) } rescue nil)
  def polls = Pyroscope.stats
  def flushes = Pyroscope.flush(0.01)
  def starts_and_stops = Pyroscope.stop.then { start_or_not }
  def work = public_send(%i[spans tags waits compress garbage fibers raises].sample(random: CHANCE))

  # Threads that do this until the process ends.
  def for_ever(*deeds, threads: 1) = Array.new(threads) { Thread.new { loop { deeds.each { |deed| public_send(deed) } } } }

  def under_load(threads = 3)
    expect(start, "configure answered no")
    for_ever(:work, threads: threads).tap { pause }
  end

  # A child that does this and ends as programs do.
  def child = fork { yield }

  def reap(process, code = 0)
    deadline = now + 15
    while now < deadline
      if Process.wait(process, Process::WNOHANG)
        expect($?.exitstatus == code, "a child ended so: #{$?.inspect}")
        return
      end
      sleep(0.005)
    end
    Process.kill(:ABRT, process) # so that it leaves a core
    sleep(1)
    Process.kill(:KILL, process)
    expect(false, "a child hung", HUNG)
  end

  # That this process is profiled, through a span and after it.
  def expect_samples
    spans
    deadline = now + 10
    before = Pyroscope.stats[:taken][:samples]
    while Pyroscope.stats[:taken][:samples] == before
      expect(now < deadline, "no samples are taken: #{Pyroscope.stats}")
      spans
    end
  end

  # How programs end.

  def the_end = under_load

  def threads_poll_stats
    under_load(1)
    for_ever(:polls, threads: 2)
    pause(0.1)
  end

  def threads_flush
    under_load(1)
    for_ever(:flushes, threads: 2)
    pause(0.1)
  end

  def threads_start_and_stop
    under_load(2)
    for_ever(:starts_and_stops)
    pause(0.2)
  end

  def threads_configure
    under_load(1)
    for_ever(:start_or_not, threads: 2)
    pause(0.1)
    Kernel.exit
  end

  def threads_do_it_all
    under_load(1)
    for_ever(:polls, :flushes, :spans, :tags, threads: 4)
    pause(0.2)
  end

  def exit
    under_load
    Kernel.exit(3)
  end

  def exit_in_spans
    under_load
    TRACER.in_span("a") { Pyroscope.tag_wrapper({ "a" => "b" }) { TRACER.in_span("b") { Kernel.exit(4) } } }
  end

  def exit_in_a_thread
    under_load
    Thread.new { pause(0.05).then { Kernel.exit(6) } }
    loop { work }
  end

  def exit_at_once
    under_load
    exit!(5)
  end

  def exit_at_once_in_a_thread
    under_load
    Thread.new { pause(0.05).then { exit!(5) } }
    loop { work }
  end

  def abort
    under_load
    Kernel.abort
  end

  def exception_in_main
    under_load
    TRACER.in_span("a") { raise IOError, "expected" }
  end

  def exceptions_in_threads
    under_load
    Thread.report_on_exception = false
    20.times { Thread.new { TRACER.in_span("a") { Pyroscope.tag_wrapper({ "a" => "b" }) { burn(0.002) && raise(IOError) } } } }
  end

  def exception_in_a_thread_ends_all
    under_load
    Thread.report_on_exception = false
    Thread.abort_on_exception = true
    Thread.new { spans.then { raise IOError, "expected" } }
    loop { work }
  end

  def endless_recursion
    under_load(1)
    dive = ->(depth) { depth % 50 == 0 ? TRACER.in_span("a", record_exception: false) { dive.(depth + 1) } : dive.(depth + 1) }
    dive.(0)
  rescue SystemStackError
    Kernel.exit(8)
  end

  def is_sent_a_signal
    under_load
    $stdout.puts("ready").then { $stdout.flush }
    loop { sleep(0.01) }
  end

  def terminated = is_sent_a_signal
  def interrupted = is_sent_a_signal
  def killed = is_sent_a_signal

  def signal_handler_exits
    trap(:TERM) { Kernel.exit(7) }
    is_sent_a_signal
  end

  def starts_late
    for_ever(:spans, :compress, threads: 3)
    pause
    Thread.new { start }
    pause(0.004)
  end

  def short_threads
    under_load(1)
    2.times { Thread.new { loop { Thread.new { burn(0.0005) }.join } } }
    pause(0.2)
  end

  # Blocks before and after the profiler's own: the last that was registered runs first.
  def at_exit_works
    block = -> { %i[spans tags polls flushes garbage].each { |deed| public_send(deed) } }
    at_exit(&block)
    under_load
    at_exit(&block)
  end

  def at_exit_starts_again
    at_exit { start_or_not }
    under_load(2)
    for_ever(:spans)
  end

  def at_exit_starts_in_threads
    at_exit { for_ever(:starts_and_stops, :garbage, threads: 2).then { pause(0.02) } }
    under_load(2)
  end

  def at_exit_raises
    under_load
    at_exit { raise IOError, "expected" }
  end

  def at_exit_exits
    under_load
    at_exit { Kernel.exit(9) }
  end

  def finalizers_work
    under_load(2)
    3.times { ObjectSpace.define_finalizer(Object.new, proc { spans.then { polls } }) }
  end

  # Interrupts at any instant of a method of ours.

  def kills_in_methods
    under_load(1)
    40.times do
      thread = Thread.new { loop { %i[polls flushes tags spans starts_and_stops].sample.then { |deed| public_send(deed) } } }
      pause(0.003)
      thread.kill
      expect(thread.join(10), "a thread that was killed goes on", HUNG)
    end
  end

  def kills_where_a_value_is_wrong
    start
    40.times do
      thread = Thread.new { loop { (Pyroscope.configure(sample_rate: Object.new) rescue nil) } }
      pause(0.003)
      thread.kill
      expect(thread.join(10), "a thread that was killed goes on", HUNG)
    end
  end

  def raises_in_methods
    under_load(1)
    30.times do
      thread = Thread.new do
        loop { %i[polls flushes tags spans].sample.then { |deed| public_send(deed) } }
      rescue Overdue
        :overdue
      end
      pause(0.003)
      thread.raise(Overdue)
      # A raise that comes before the block begins ends the thread with it.
      value = (expect(thread.join(10), "an exception was swallowed", HUNG) || thread.value) rescue :overdue
      expect(value == :overdue, "an exception was swallowed: #{value.inspect}")
    end
  end

  def timeouts_in_tags
    under_load(1)
    before = Pyroscope::Native.current_tags
    30.times do
      Timeout.timeout(0.001 + CHANCE.rand * 0.002, Overdue) { loop { tags } }
    rescue Overdue
      expect(Pyroscope::Native.current_tags == before, "tags stick")
    end
  end

  def fibers_are_abandoned
    under_load(1)
    300.times { |number| Fiber.new { Pyroscope.tag_wrapper({ "request" => number.to_s }) { TRACER.in_span("a") { Fiber.yield } } }.resume }
    GC.start
    tags
  end

  def collections_and_compaction
    under_load(1)
    GC.auto_compact = CHANCE.rand < 0.5
    # Compaction beside Zlib crashes Ruby 3.1 by itself.
    for_ever(:spans, :tags, :garbage)
    5.times { (RUBY_VERSION < "3.2" ? GC.start : GC.compact).then { tags } }
  end

  def gc_stress
    expect(start, "configure answered no")
    for_ever(:tags)
    GC.stress = true
    sleep(0.2)
  ensure
    GC.stress = false
  end

  def long_collection_at_the_end
    under_load(1)
    $kept = Array.new(200_000) { |number| [number] } # rubocop:disable Style/GlobalVars
    Thread.new { loop { GC.start } }
    pause(0.1)
  end

  # Forks, and programs that become others.

  def forks
    under_load
    3.times do
      pause(0.02)
      reap(child { expect_samples })
    end
  end

  def forks_at_once
    under_load
    Array.new(5) { child { spans } }.each { |process| reap(process) }
  end

  def forks_in_threads
    under_load(1)
    Array.new(3) { Thread.new { 4.times { reap(fork { spans.then { exit!(0) } }) } } }.each(&:join)
  end

  def child_of_a_thread_ends_as_programs_do
    under_load(1)
    Thread.new { reap(child { spans }) }.join
  end

  def stop_fork_configure
    under_load
    Pyroscope.stop
    process = child do
      expect(start, "configure answered no in the child")
      expect_samples
      Pyroscope.stop
      expect(start, "configure answered no in the child, the second time")
      expect_samples
    end
    reap(process)
    expect(start, "configure answered no after the fork")
    expect_samples
  end

  # Forks while another thread does what the block does; the child's profiler works.
  def fork_while(what)
    changing = Thread.new { yield }
    pause(0.003)
    process = child do
      Pyroscope.stop
      expect(start, "configure answered no in the child")
      expect_samples
    end
    reap(process)
    expect(changing.join(15), "#{what} hung", HUNG)
  end

  def fork_during_stop
    under_load(2)
    fork_while("stop") { Pyroscope.stop }
  end

  def fork_during_configure
    expect(start, "configure answered no")
    Pyroscope.stop
    fork_while("configure") { start }
  end

  def configure_during_stop
    under_load(1)
    10.times do
      stopping = Thread.new { Pyroscope.stop }
      pause(0.002)
      start_or_not
      expect(stopping.join(15), "stop hung", HUNG)
    end
    Pyroscope.stop
    expect(start, "configure answered no after all of them")
    expect_samples
  end

  def daemonizes
    under_load
    process = fork do
      Process.setsid
      process = fork { spans.then { Kernel.exit(0) } }
      reap(process)
    end
    reap(process)
  end

  def execs
    under_load
    Kernel.exec({ "RUBYOPT" => nil }, RbConfig.ruby, "-W0", "--disable-gems", "-e", "sleep(0.02); exit!(7)")
  end

  def execs_in_a_thread
    under_load
    Thread.new { execs }
    loop { work }
  end

  def spawns
    under_load(2)
    4.times do |number|
      system("exit #{number}")
      expect($?.exitstatus == number, "sh ended so: #{$?.inspect}")
    end
  end

  def spawns_while_it_ends
    under_load(1)
    2.times { Thread.new { loop { Process.wait(spawn("true")) } } }
    pause(0.1)
  end
end

Exits.public_send(ARGV.fetch(0)) if $PROGRAM_NAME == __FILE__
