# frozen_string_literal: true

module Pyroscope
  # What must happen when the process forks and when it ends.
  module Lifecycle
    # Put before Process._fork, which all forks go through, and before Process.daemon, which forks by itself.
    module Forks
      def _fork
        super.tap { |pid| Lifecycle.forked if pid.zero? }
      end

      def daemon(...)
        super.tap { Lifecycle.forked }
      end
    end

    # Its finalizer runs after the last block of at_exit, when the program's other threads have ended: the main work of a
    # program may be in such a block that was there before ours (minitest, test-unit, Sinatra).
    AT_THE_END = Object.new

    @watching = @watches_exit = false

    # From before the first profiler on: forked children have one of their own, and the last samples are sent at exit.
    # A forked child inherits both. A signal's handler may raise at any point here: then the next call does the rest.
    def self.watch
      return if @watching

      ::Process.singleton_class.prepend(Forks)
      unless @watches_exit
        Kernel.at_exit { ending }
        @watches_exit = true
      end
      ObjectSpace.define_finalizer(AT_THE_END, ->(_id) { ended })
      @watching = true
    end

    # The program begins to end. What there is goes out already, as threads that do not end may hold up the rest; nobody waits.
    def self.ending
      Native.flush(0.0)
      Messages.deliver
    end

    # It has ended. Ruby swallows what a finalizer raises, so a signal that comes meanwhile does here what it does elsewhere: it ends
    # the process, by itself or with the status of the program's `exit`.
    def self.ended
      Native.finish(STOP_TIMEOUT)
      Messages.deliver
    rescue SignalException => signal
      Signal.trap(signal.signo, "SYSTEM_DEFAULT")
      ::Process.kill(signal.signo, ::Process.pid)
    rescue SystemExit => ending
      exit!(ending.status)
    end

    # In a forked child. Never raises: the program's fork must not suffer.
    def self.forked
      Messages.undisturbed do
        Native.after_fork
        Profiler.take_over
        Messages.deliver
      rescue StandardError => error
        Messages.warn_once(:fork, "no profiles are taken in this forked process: #{error.message}")
      end
    end
  end
end
