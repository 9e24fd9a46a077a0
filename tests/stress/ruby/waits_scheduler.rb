# frozen_string_literal: true

# A scheduler of fibers: one loop around IO.select.
class WaitsScheduler
  # Who is to go on with an error, and when.
  Limit = Struct.new(:ends, :fiber, :error, :message)

  def initialize
    @ends = {}
    @blocked = {}
    @waiting = {}
    @limits = []
    @ready = Thread::Queue.new
    @woken, @waker = IO.pipe
  end

  def fiber(&) = Fiber.new(blocking: false, &).tap(&:resume)

  def kernel_sleep(duration = nil) = block(:sleep, duration)

  def block(_blocker, timeout = nil)
    fiber = Fiber.current
    @blocked[fiber] = true
    @ends[fiber] = now + timeout if timeout
    Fiber.yield
  ensure
    @blocked.delete(fiber)
    @ends.delete(fiber)
  end

  # By another thread, too.
  def unblock(_blocker, fiber)
    @ready << fiber
    @waker.write_nonblock(".", exception: false)
  end

  def io_wait(io, events, timeout = nil)
    fiber = Fiber.current
    @waiting[fiber] = [io, events]
    @ends[fiber] = now + timeout if timeout
    Fiber.yield
  ensure
    @waiting.delete(fiber)
    @ends.delete(fiber)
  end

  def timeout_after(duration, error, message)
    limit = Limit.new(now + duration, Fiber.current, error, message)
    @limits << limit
    yield duration
  ensure
    @limits.delete(limit)
  end

  # When the thread ends, or has another scheduler.
  def close = run
  def run = (turn until @blocked.empty? && @waiting.empty?)

  private

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  def turn
    readable, writable = select
    @woken.read_nonblock(100, exception: false) if readable.delete(@woken)
    go_on(false) { |fiber| @ends.fetch(fiber, now + 1) <= now }
    limits, @limits = @limits.partition { |limit| limit.ends <= now }
    limits.each { |limit| limit.fiber.raise(limit.error, limit.message) if limit.fiber.alive? }
    ready = Array.new(@ready.size) { @ready.pop }
    ready.each { |fiber| fiber.resume(true) if @blocked.key?(fiber) }
    @waiting.to_a.each do |fiber, (io, events)|
      come = (readable.include?(io) ? IO::READABLE : 0) | (writable.include?(io) ? IO::WRITABLE : 0)
      fiber.resume(come & events) if (come & events).positive? && @waiting.key?(fiber)
    end
  end

  def select
    asked = ->(event) { @waiting.values.filter_map { |io, events| io if (events & event).positive? } }
    first = [*@ends.values, *@limits.map(&:ends), now + 1].min
    IO.select([*asked.call(IO::READABLE), @woken], asked.call(IO::WRITABLE), [], [first - now, 0].max) || [[], []]
  end

  def go_on(result) = @ends.keys.each { |fiber| fiber.resume(result) if @ends.key?(fiber) && yield(fiber) }
end
