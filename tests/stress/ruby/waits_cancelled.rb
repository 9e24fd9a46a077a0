# frozen_string_literal: true

require_relative "waits_work"

# Waits that something ends from outside, that are suspended, and those of child processes.
module Ways
  # Who waits is never out for good: what was to interrupt it may be swallowed where a finalizer ran just then.
  LONGEST = 0.05
  # The thread in which the handler of a signal may raise: way_signals waits there. A child process inherits it, and signals that have
  # come and were not handled yet, but it has another main thread.
  @may_raise = nil
  # How many children did not begin within so many seconds.
  BEGINS = 10
  @stuck = 0

  class << self
    attr_accessor :may_raise, :stuck

    # Waits of which nobody says what became of them.
    def lost(stats)
      fates = %i[waits_sampled waits_outside waits_pending waits_dropped_ring waits_dropped_busy waits_dropped_thread]
      stats[:waits_taken][:samples] - fates.sum { |fate| stats[fate][:samples] }
    end
  end

  module_function

  # Pipes are made where nothing can interrupt that: Ruby would close their descriptors twice, the second time perhaps another thread's.
  def way_timeout(_partner, rounds)
    reader, writer = IO.pipe
    rounds.times do |round|
      Timeout.timeout(a_little) { round.even? ? sleep(LONGEST) : way_timeout__deeper(round, reader) }
    rescue Timeout::Error
      # As it must be.
    end
  ensure
    [reader, writer].each(&:close)
  end

  def way_timeout__deeper(round, reader)
    mutex = Mutex.new
    round % 4 == 1 ? reader.wait_readable(LONGEST) : mutex.synchronize { ConditionVariable.new.wait(mutex, LONGEST) }
  end

  # Nothing is raised but here: before it goes on it hears that it was.
  def way_interrupted(partner, rounds)
    rounds.times do |round|
      Thread.handle_interrupt(Out => :never) do
        raised = Queue.new
        partner.ask(:outside_raises, Thread.current, raised)
        way_interrupted__inside(round)
        raised.pop
      end
    rescue Out
      # It came late.
    end
  end

  def way_interrupted__inside(round)
    Thread.handle_interrupt(Out => round.even? ? :immediate : :on_blocking) do
      round % 3 == 1 ? SHARED.synchronize { sleep(LONGEST) } : sleep(LONGEST)
    end
  rescue Out
    sleep(a_little)
  end

  def outside_raises(thread, raised)
    Thread.pass until thread.stop?
    thread.raise(Out)
    raised << 1
  end

  def way_kills(_partner, rounds)
    (rounds / 2).times do
      thread = in_thread(:enter_killed)
      sleep(a_little) until thread[:waits] || !thread.alive?
      thread.kill
      thread.join
    end
  end

  def way_killed
    Thread.current[:waits] = true
    rand(2).zero? ? sleep(LONGEST) : Queue.new.pop
  ensure
    way_killed__after
  end

  def way_killed__after = sleep(a_little)

  # In the main thread: a handler raises out of the wait, or waits itself.
  def way_signals(partner, rounds)
    reader, writer = IO.pipe
    (rounds / 2).times do |round|
      Ways.may_raise = Thread.current
      partner.ask(:outside_kills, round % 3 == 1 ? :USR1 : :USR2)
      round.odd? ? sleep(10 * a_little) : way_signals__reads(reader)
    rescue Out
      # Out of the wait.
    ensure
      Ways.may_raise = nil
    end
  ensure
    [reader, writer].each(&:close)
  end

  def way_signals__reads(reader) = reader.wait_readable(10 * a_little)

  def outside_kills(signal) = sleep(a_little) && Process.kill(signal, Process.pid)

  def handler_raises
    may_raise = Ways.may_raise == Thread.current
    # Once: by the next one the thread may be in OpenTelemetry's code.
    Ways.may_raise = nil
    raise Out if may_raise
  end

  def handler_waits = sleep(a_little)

  # A fiber that a scheduler would suspend here stays as it is.
  def handler_finalizes(_id) = (sleep(a_little) if Fiber.blocking?)

  def way_garbage(_partner, rounds)
    ObjectSpace.define_finalizer(Object.new, method(:handler_finalizes))
    rounds.times { Array.new(300) { |number| "x#{number}" } && sleep(a_little) }
    GC.start(full_mark: rand(4).zero?, immediate_sweep: rand(2).zero?)
    GC.compact if rand(50).zero?
    sleep(a_little)
  end

  # Each keeps the span for itself, and is suspended within it.
  def way_fibers(partner, rounds)
    fibers = Array.new(3) { in_fiber(:enter_fiber, partner, rounds) }
    until fibers.empty?
      fibers = fibers.each(&:resume).select(&:alive?)
      sleep(a_little)
    end
    # Is left as it is, and collected.
    in_fiber(:enter_fiber, partner, 2).resume
    raised = in_fiber(:enter_fiber, partner, rounds).tap(&:resume)
    sleep(a_little)
    begin
      raised.raise(Out)
    rescue Out
      sleep(a_little)
    end
    in_fiber(:enter_fiber, partner, rounds).tap(&:resume).kill if Fiber.method_defined?(:kill)
  end

  def way_fiber(_partner, rounds)
    rounds.times { sleep(a_little) && Fiber.yield }
  ensure
    sleep(a_little)
  end

  def way_enumerator(_partner, rounds)
    numbers = Enumerator.new { |yielder| outside_enumerates(yielder) }
    rounds.times { numbers.next && sleep(a_little) }
  end

  def outside_enumerates(yielder) = loop { sleep(a_little) && yielder << 1 }

  # Fibers of a thread, by a scheduler: its loop is in no span, or in one of its own.
  def way_scheduler(_partner, rounds)
    in_thread(%i[outside_loop enter_loop].sample, rounds).join
  end

  def outside_loop(rounds) = schedule(rounds)
  def way_loop(rounds) = schedule(rounds)

  def schedule(rounds)
    Fiber.set_scheduler(SCHEDULERS.sample.new)
    queue = Thread::Queue.new
    mutex = Thread::Mutex.new
    reader, writer = IO.pipe
    2.times { Fiber.schedule { enter_scheduled_sleep(mutex, rounds) } }
    Fiber.schedule { enter_scheduled_queue(queue, writer, rounds) }
    Fiber.schedule { enter_scheduled_read(queue, reader, rounds) }
    Fiber.schedule { enter_scheduled_limit(rounds) }
    Fiber.set_scheduler(nil)
  ensure
    [reader, writer].each { |io| io&.close }
  end

  def way_scheduled_sleep(mutex, rounds) = rounds.times { mutex.synchronize { sleep(a_little) } && sleep(a_little) }

  def way_scheduled_queue(queue, writer, rounds)
    rounds.times { writer.write("x") && queue.pop }
  end

  def way_scheduled_read(queue, reader, rounds)
    rounds.times { reader.readpartial(1) && sleep(a_little) && queue.push(1) }
  end

  def way_scheduled_limit(rounds)
    rounds.times do
      Timeout.timeout(a_little) { sleep(LONGEST) }
    rescue Timeout::Error
      # As it must be.
    end
  end

  def way_child(_partner, _rounds)
    Process.wait(Process.spawn("true"))
    system("true") or raise "system: #{$?}"
    `echo x`
    IO.popen("read line; echo x", "r+") { |child| child.puts("x") && child.read }
  end

  # Children that inherit the profiler: they end at once, wait in the span that they were forked in, or have profiles of their own.
  def way_fork(_partner, _rounds)
    [nil, :way_fork__child, :way_fork__profiled].each { |work| way_fork__one(work) }
  end

  # In a child Ruby waits for ever for a lock (th->interrupt_lock) that another thread had at the fork, https://github.com/ruby/ruby/pull/12981.
  # Such a child runs nothing of the program's, and is ended.
  def way_fork__one(work)
    reader, writer = IO.pipe
    child = fork do
      writer.write("x")
      send(work) if work
      exit!(0)
    rescue StandardError => error
      $stderr.puts(error.full_message) # not warn, which -W0 silences
      exit!(1)
    end
    stuck = !reader.wait_readable(BEGINS)
    Process.kill(:KILL, child) if stuck
    Process.wait(child)
    stuck ? Ways.stuck += 1 : $?.success? || raise("a child ended by #{$?}")
  ensure
    [reader, writer].each(&:close)
  end

  def way_fork__child = sleep(a_little)

  def way_fork__profiled
    Native.after_fork
    10.times { enter_child_sleep }
    Native.stop(60.0) or raise "not stopped: #{Native.stats}"
    raise "waits are lost: #{Native.stats}" unless Ways.lost(Native.stats).zero?
  end

  def way_child_sleep = sleep(a_little)
end
