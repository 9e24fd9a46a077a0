# frozen_string_literal: true

# Work that moves frames: closures that escape, code made and dropped, exceptions, deep stacks, fibers, threads, garbage
# collection with compaction, dispatch, processes and signals. Methods are called s<kind>_<level>.
#
# CALLERS says which of them may call which, or yield to a block of which: a pair that is not there was never on a stack.
require "objspace"
require "timeout"

module StressWork
  KEEP = Array.new(64)
  CALLERS = {
    s0_1: %i[s0_0 s0_2 s0_3], s0_2: %i[s0_1 s0_3], s0_3: %i[s0_1 s0_2], s0_4: %i[s0_3],
    s1_1: %i[s1_0], s1_2: %i[s1_1], s1_3: %i[s1_1 s1_2], s1_4: %i[s1_3], s1_5: %i[s1_1],
    s2_1: %i[s2_0], s2_2: %i[s2_1 s2_4], s2_3: %i[s2_1], s2_4: %i[s2_2],
    s3_1: %i[s3_0], s3_2: %i[s3_0], s3_3: %i[s3_0],
    s4_1: %i[s4_0 s4_2], s4_2: %i[s4_1 s4_3], s4_3: %i[s4_2],
    s5_1: %i[s5_0 s5_2], s5_2: %i[s5_1], s5_3: %i[s5_1],
    s6_1: %i[s6_0], s6_2: %i[s6_0],
    s7_1: %i[s7_0], s7_3: %i[s7_1], s7_4: %i[s7_1 s7_3],
    s8_1: %i[s8_0], s8_2: %i[s8_1]
  }.freeze
  ROUNDS = [300, 60, 100, 1, 60, 3, 1, 200, 1].freeze
  # Kinds that only the main thread does.
  ALONE = [3, 6, 8].freeze

  module_function

  def run(kind) = send(:"s#{kind}_0", ROUNDS.fetch(kind))

  # Closures and bindings that outlive their frames.
  def s0_0(rounds) = rounds.times { |number| s0_1(number) }

  def s0_1(a)
    [1].each { |b| [2].each { |c| [3].each { |d| s0_2(a) { KEEP[a & 31] = proc { a + b + c + d } } } } }
    s0_3(a) { a }
  end

  def s0_2(x)
    [x].each { |y| lambda { |z| s0_3(z) { x + y } }.call(y).then { KEEP[32 + (y & 15)] = binding if (y % 7).zero? } }
    yield
  end

  def s0_3(x, &block)
    KEEP[48 + (x & 7)] = block
    block.call
    s0_4(x)
  end

  def s0_4(x) = x.then { |y| proc { y }.call }

  # Classes, methods and evaluated code, made and dropped.
  def s1_0(rounds) = rounds.times { |number| s1_1(number) }

  def s1_1(number)
    made = Class.new do
      class_eval "def s1_2(x) = [x].each { |y| s1_3(y) }", __FILE__, __LINE__
      class_eval "def s1_3(x) = x.then { |z| s1_4(z) }", __FILE__, __LINE__
      class_eval "def s1_4(x) = Array.new(3) { |k| k + x }", __FILE__, __LINE__
    end
    object = made.new
    object.s1_2(number)
    object.instance_eval { s1_3(number) }
    def object.s1_5 = 5.times.to_a
    object.s1_5
    eval("[1, 2].each { |x| x + number }", binding, __FILE__, __LINE__)
  end

  # Exceptions, throw, break and retry.
  def s2_0(rounds) = rounds.times { |number| s2_1(number) }

  def s2_1(number)
    tries = 0
    begin
      s2_2(number)
    rescue ArgumentError
      retry if (tries += 1) < 2
    rescue RuntimeError => error
      error.backtrace.size
    end
    catch(:out) { [1].each { |x| s2_3(x) } }
    [1, 2].each { |x| break x if x == 1 }
    loop { raise StopIteration }
  end

  def s2_2(number)
    [number].each { |x| begin; raise(number.odd? ? ArgumentError : "out"); ensure; s2_4(x) { x }; end }
  end

  def s2_3(x) = [x].each { |y| [y].each { throw :out } }
  def s2_4(_) = (yield; Integer("z", exception: false))

  # Deep stacks, and too deep ones.
  def s3_0(_rounds)
    s3_1(0)
    begin; s3_2(0); rescue SystemStackError; end
    begin; s3_3([]); rescue SystemStackError; end
  end

  def s3_1(depth) = depth > 200 ? 0 : [depth].each { |x| s3_1(x + 1) }
  def s3_2(depth) = s3_2(depth + 1) + 1
  def s3_3(list) = list.then { |x| [x, x].sort_by { |y| s3_3([y]); 1 } }

  # Fibers and enumerators.
  def s4_0(rounds) = rounds.times { |number| s4_1(number) }

  def s4_1(_number)
    fiber = Fiber.new { |x| 5.times { |k| x = Fiber.yield(s4_2(x) { k }) } }
    5.times { |k| fiber.resume(k) }
    numbers = Enumerator.new { |yielder| 3.times { |x| yielder << x } }
    3.times { numbers.next }
    KEEP[61] = fiber
    raising = Fiber.new { Fiber.yield; raise "in" }
    raising.resume
    begin; raising.raise("out"); rescue RuntimeError; end
  end

  def s4_2(x) = [x].each { |_| s4_3(x) { yield } }
  def s4_3(_) = yield

  # Threads, Timeout, Thread#raise and Thread#kill.
  def s5_0(rounds) = rounds.times { |number| s5_1(number) }

  def s5_1(number)
    queue = Queue.new
    mutex = Mutex.new
    threads = [1, 2].map { |k| Thread.new { mutex.synchronize { queue << k } } }
    queue.pop
    threads.each(&:join)
    Timeout.timeout(60) { s5_2(number) { 1 } }
    begin; Timeout.timeout(0.001) { s5_3(number) while true }; rescue Timeout::Error; end
    thread = Thread.new { begin; nil while true; rescue ArgumentError; end }
    thread.report_on_exception = false
    Thread.pass
    thread.raise(ArgumentError) if thread.alive?
    thread.kill
    begin; thread.join; rescue ArgumentError; end
  end

  def s5_2(x) = [x].each { |y| yield y }
  def s5_3(x) = [x].map { |y| y + 1 }

  # Garbage collection and compaction.
  def s6_0(_rounds)
    s6_1
    GC.start(full_mark: rand(2).zero?, immediate_sweep: rand(2).zero?)
    GC.compact if rand(4).zero?
    s6_2
  end

  def s6_1 = Array.new(2_000) { |x| "x#{x}" * 3 }.each_slice(7, &:sort)

  def s6_2
    GC.auto_compact = true if rand(3).zero?
    if rand(10).zero?
      GC.stress = true
      20.times { |x| [x].each { "y#{x}" } }
    end
  ensure
    GC.stress = GC.auto_compact = false
  end

  # Dispatch by other ways than a call.
  class Dispatched
    include Comparable

    def method_missing(name, *arguments) = name == :s7_2 ? arguments.each { |x| s7_3(x) } : super
    def respond_to_missing?(*) = true
    def s7_3(x) = x.to_s.gsub(/\d/) { |digit| s7_4(digit) }
    def s7_4(digit) = digit.succ
    def <=>(_other) = 0
  end

  def s7_0(rounds) = rounds.times { |number| s7_1(number) }

  def s7_1(number)
    object = Dispatched.new
    object.s7_2(number)
    object.public_send(:s7_3, number)
    [Dispatched.new, object].max
    Hash.new { |hash, key| hash[key] = object.s7_4(key.to_s) }[number]
    ObjectSpace.each_object(Class).first(3) if (number % 50).zero?
    Dispatched.instance_method(:s7_4).bind_call(object, "1")
  end

  # Processes and signals.
  def s8_0(_rounds)
    child = fork { Pyroscope::Native.after_fork; s8_1(500); exit!(0) }
    Process.wait(child)
    raise "a child ended by #{$?}" unless $?.success?

    system("true") or raise "system: #{$?}"
    Process.kill(:USR1, Process.pid)
    `true`
  end

  def s8_1(rounds) = rounds.times { |x| [x].each { |y| s8_2(y) } }
  def s8_2(y) = y.to_s * 2
end
