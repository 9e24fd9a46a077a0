# frozen_string_literal: true

# What waits.rb does: each way_X waits in a span X, which enter_X opens around it. What is done outside of spans is called outside_,
# and what signals and collections make a thread do in between handler_. CALLERS in waits_table.rb says who calls whom.
require "io/wait"
require "monitor"
require "socket"
require "timeout"
require_relative "waits_modules"
require_relative "waits_scheduler"
# The bundle has it for the newest Ruby alone. On 3.1, where a bench has installed it, a fiber that reads from a pipe never goes on, without the
# profiler too (async 2.24).
require "async" if RUBY_VERSION >= "3.4"

# What ends a wait from outside.
class Out < StandardError; end

# A thread that does for another one what ends its waits, in no span.
class Partner
  attr_reader :thread

  def initialize
    @asked = Thread::Queue.new
    @thread = Ways.in_thread(:outside_partner, @asked)
    @thread.abort_on_exception = true
  end

  def ask(*what) = @asked << what
  def end = @asked.close && @thread.join
end

# Each way is given a partner, and how often it is to wait.
module Ways
  FOLDER = Dir.mktmpdir
  SHARED = Mutex.new
  SCHEDULERS = [WaitsScheduler, *(Async::Scheduler if defined?(Async::Scheduler))].freeze

  module_function

  def a_little = 0.00002 + (rand * 0.0004)

  # Not by blocks of ways, whose names would be on the stacks of others.
  def in_thread(name, *arguments) = Thread.new { send(name, *arguments) }
  def in_fiber(name, *arguments) = Fiber.new { send(name, *arguments) }

  def outside_partner(asked)
    while (what, *arguments = asked.pop)
      send(what, *arguments)
    end
  end

  def outside_waits(*)
    sleep(a_little)
    Timeout.timeout(a_little) { Queue.new.pop }
  rescue Timeout::Error
    SHARED.synchronize { sleep(a_little) }
  end

  def way_sleep(_partner, rounds) = rounds.times { sleep(a_little) }

  def way_woken(partner, rounds)
    rounds.times do
      partner.ask(:outside_wakes, Thread.current)
      sleep(0.1)
    end
  end

  def outside_wakes(thread)
    Thread.pass until thread.stop?
    thread.wakeup
  end

  def way_mutex(partner, rounds)
    mutex = [SHARED, Mutex.new].sample
    partner.ask(:outside_holds, mutex, rounds)
    rounds.times { mutex.synchronize { way_mutex__held } }
  end

  def way_mutex__held = (sleep(a_little) if rand(2).zero?)
  def outside_holds(mutex, rounds) = rounds.times { mutex.synchronize { sleep(a_little) } }

  def way_condition(partner, rounds)
    mutex = Mutex.new
    condition = ConditionVariable.new
    rounds.times do
      mutex.synchronize do
        partner.ask(:outside_signals, mutex, condition)
        condition.wait(mutex, 0.1)
      end
    end
  end

  def outside_signals(mutex, condition) = mutex.synchronize { condition.signal }

  def way_monitor(partner, rounds)
    monitor = Monitor.new
    condition = monitor.new_cond
    rounds.times do
      partner.ask(:outside_monitors, monitor, condition)
      monitor.synchronize { condition.wait(0.01) }
      monitor.enter
      monitor.exit
    end
  end

  def outside_monitors(monitor, condition)
    monitor.synchronize do
      condition.signal
      sleep(a_little)
    end
  end

  def way_queue(partner, rounds)
    questions = Queue.new
    answers = Queue.new
    partner.ask(:outside_answers, questions, answers, rounds)
    rounds.times { questions.push(1) && answers.pop }
  end

  def outside_answers(questions, answers, rounds) = rounds.times { answers.push(questions.pop) }

  def way_narrow_queue(partner, rounds)
    queue = SizedQueue.new(1)
    partner.ask(:outside_pops, queue, rounds)
    rounds.times { queue.push(1) }
  end

  def outside_pops(queue, rounds) = rounds.times { sleep(a_little) && queue.pop }

  def way_pipe(partner, rounds)
    ours, theirs = IO.pipe, IO.pipe
    partner.ask(:outside_echoes, ours.first, theirs.last, rounds)
    rounds.times { ours.last.write("x") && theirs.first.readpartial(1) }
  ensure
    [ours.last, theirs.first].each(&:close)
  end

  def outside_echoes(reader, writer, rounds)
    rounds.times { writer.write(reader.readpartial(1)) }
  rescue EOFError, Errno::EPIPE
    # The other one was interrupted.
  ensure
    [reader, writer].each(&:close)
  end

  def way_full_pipe(partner, _rounds)
    reader, writer = IO.pipe
    partner.ask(:outside_reads, reader)
    4.times { writer.write("x" * 70_000) }
  ensure
    writer&.close
  end

  def outside_reads(reader) = (sleep(a_little) until reader.read(30_000).nil?) || reader.close

  def way_sockets(partner, rounds)
    ours, theirs = UNIXSocket.pair
    partner.ask(:outside_answers_socket, theirs)
    rounds.times do |round|
      ours.send("x", 0)
      [-> { IO.select([ours]) }, -> { ours.wait_readable(1) }, -> {}].fetch(round % 3).call
      ours.recv(1)
    end
  ensure
    ours&.close
  end

  def outside_answers_socket(socket)
    while (got = socket.readpartial(1))
      socket.write(got)
    end
  rescue EOFError, Errno::EPIPE, Errno::ECONNRESET
    socket.close
  end

  def way_server(partner, _rounds)
    server = TCPServer.new("127.0.0.1", 0)
    5.times do
      partner.ask(:outside_connects, server.addr[1])
      server.accept.close
      TCPSocket.new("127.0.0.1", server.addr[1]).close
      server.accept.close
    end
  ensure
    server&.close
  end

  def outside_connects(port) = sleep(a_little) && TCPSocket.new("127.0.0.1", port).close

  def way_file(_partner, _rounds)
    File.open(File.join(FOLDER, "file#{Thread.current.object_id}"), "w") do |file|
      3.times { file.write("x") && file.fsync && file.fdatasync }
    end
  end

  def way_file_lock(partner, _rounds)
    first, second = Array.new(2) { File.open(File.join(FOLDER, "lock#{Thread.current.object_id}"), "w") }
    5.times do
      first.flock(File::LOCK_EX)
      partner.ask(:outside_unlocks, first)
      second.flock(File::LOCK_EX)
      second.flock(File::LOCK_UN)
    end
  ensure
    [first, second].compact.each(&:close)
  end

  def outside_unlocks(file)
    sleep(a_little)
    file.flock(File::LOCK_UN)
  rescue IOError
    # The other one went on, and closed it.
  end

  def way_join(_partner, rounds)
    rounds.times { |round| in_thread(:outside_ends).public_send(round.odd? ? :join : :value) }
  end

  def outside_ends = sleep(a_little)

  def way_names(_partner, rounds)
    (rounds / 4).times { Addrinfo.getaddrinfo("localhost", 80).first.getnameinfo }
  end

  # A context that another thread takes over, which goes on without it.
  def way_attached(_partner, rounds)
    in_thread(:outside_attaches, OpenTelemetry::Context.current, rounds).join
  end

  def outside_attaches(context, rounds)
    enter_attached__there(context, rounds)
    sleep(a_little)
  end

  def enter_attached__there(context, rounds) = OpenTelemetry::Context.with_current(context) { way_attached__there(rounds) }
  def way_attached__there(rounds) = rounds.times { sleep(a_little) }

  # Modules come and go, also while one of them waits or calls back.
  def way_module(_partner, _rounds)
    reader, writer = IO.pipe
    4.times do
      WaitsModules.opened do |function|
        function.call("sleeps", WaitsModules::INT).call(100)
        function.call("polls", WaitsModules::INT).call(reader.fileno)
        function.call("locks", WaitsModules::INT).call(100)
        callback = WaitsModules.callback { |number| way_module__called(number) }
        function.call("calls", Fiddle::TYPE_VOIDP, WaitsModules::INT).call(callback, 1)
      end
      WaitsModules.opened { |_function| nil }
    end
  ensure
    [reader, writer].each(&:close)
  end

  def way_module__called(number) = sleep(a_little) && number

  def way_outer(partner, rounds)
    (rounds / 4).times do
      sleep(a_little)
      enter_inner(partner, rand(3))
      sleep(a_little)
      begin
        enter_raises
      rescue Out
        sleep(a_little)
      end
      catch(:out) { enter_throws }
      sleep(a_little)
      [1].each { |number| enter_leaves(number) }
      enter_sleep(partner, 1)
    end
  end

  def way_inner(partner, rounds)
    sleep(a_little)
    enter_queue(partner, 2)
    enter_inner(partner, rounds - 1) if rounds.positive?
    sleep(a_little)
  end

  def way_raises = SHARED.synchronize { sleep(a_little) && raise(Out) }
  def way_throws = [1].each { sleep(a_little) && throw(:out) }

  def way_leaves(number)
    [number].each { return sleep(a_little) }
  ensure
    sleep(a_little)
  end
end
