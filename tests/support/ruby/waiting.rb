# frozen_string_literal: true

# How long a thread waits at least is known where who ends its wait begins when that has begun: on a busy machine a thread may come to
# its wait late, by any time.
module Waiting
  # Does the block in another thread, so many seconds after the calling one began to wait.
  def self.later(seconds, &block)
    waiting = Thread.current
    Thread.new do
      begun(waiting)
      sleep(seconds)
      block.call
    end
  end

  # A mutex that another thread holds until so many seconds after the calling one began to wait.
  def self.held(seconds)
    waiting = Thread.current
    locked = Queue.new
    mutex = Mutex.new
    Thread.new do
      mutex.synchronize do
        locked << 1
        begun(waiting)
        sleep(seconds)
      end
    end
    locked.pop
    mutex
  end

  # Returns when this thread is in a call that waits.
  def self.begun(thread)
    sleep(0.0005) until thread.stop? && sleeps?(thread)
  end

  # Ruby says that a thread sleeps before it calls what waits; the kernel says it when it does.
  def self.sleeps?(thread) = File.read("/proc/self/task/#{thread.native_thread_id}/stat").include?(") S ")
  private_class_method :sleeps?
end
