# frozen_string_literal: true

# Very many waits of 0.1 to 5 ms, of four kinds, so that of most kept samples each stands for several: how long they were in all,
# and what the profile has of them.
#
#   ruby wait_kinds.rb [--seconds N]      prints JSON
#
# Each kind has its spans. What a wait of I/O, for a lock or by sleeping took is the thread's clock around its call, less its CPU
# time; one for the GVL is from when C code wanted it, by its own clock, until Ruby has it: another thread keeps it meanwhile, in
# C code.
require_relative "spans"
require "fiddle"
require "socket"

module WaitKinds
  # Seconds that a wait takes.
  LENGTHS = (0.0001..0.005)
  # Nanoseconds within which the other thread has taken the GVL.
  LEAD_NS = 300_000
  WAITS_OF_A_SPAN = 20
  KINDS = %i[io lock sleep gvl].freeze

  # A wait of each kind, which another thread ends; each returns the nanoseconds that it took.
  class Waits
    def initialize
      library = load
      @wanted_after = Fiddle::Function.new(library["wanted_after"], [Fiddle::TYPE_LONG], Fiddle::TYPE_LONG_LONG, need_gvl: false)
      @keep_for = Fiddle::Function.new(library["keep_for"], [Fiddle::TYPE_LONG], Fiddle::TYPE_VOID, need_gvl: true)
      @ours, @theirs = UNIXSocket.pair
      @items, @asked = Queue.new, Queue.new
      @other = Thread.new { while (action = @asked.pop) do action.call end }
    end

    def io(seconds)
      later(seconds) { @theirs.send("x", 0) }
      off_cpu_ns { @ours.recv(1) }
    end

    def lock(seconds)
      later(seconds) { @items << 1 }
      off_cpu_ns { @items.pop }
    end

    def sleep(seconds) = off_cpu_ns { Kernel.sleep(seconds) }

    def gvl(seconds)
      @asked << -> { @keep_for.call(LEAD_NS + (seconds * 1e9).round) }
      wanted_ns = @wanted_after.call(LEAD_NS)
      Spans.now_ns - wanted_ns
    end

    def end
      @asked << nil
      @other.join
    end

    private

    def load
      Dir.mktmpdir do |folder|
        library = File.join(folder, "wait_kinds.so")
        source = File.expand_path("../wait_kinds.c", __dir__)
        system("cc", "-O2", "-shared", "-fPIC", source, "-o", library, exception: true)
        Fiddle.dlopen(library)
      end
    end

    def later(seconds, &action)
      @asked << -> { Kernel.sleep(seconds) && action.call }
    end

    def off_cpu_ns
      began_ns, began_cpu_ns = Spans.now_ns, Spans.thread_cpu_ns
      yield
      Spans.now_ns - began_ns - (Spans.thread_cpu_ns - began_cpu_ns)
    end
  end
end

options = Program.options(seconds: 30.0)
waits, measured_ns, stats = WaitKinds::Waits.new, Hash.new(0), {}
samples = Spans.profiled(stats) do
  end_ns = Spans.now_ns + (options[:seconds] * 1e9).round
  while Spans.now_ns < end_ns
    WaitKinds::KINDS.each do |kind|
      Spans::TRACER.in_span(kind.name) do
        WaitKinds::WAITS_OF_A_SPAN.times { measured_ns[kind] += waits.public_send(kind, rand(WaitKinds::LENGTHS)) }
      end
    end
  end
  waits.end
end
sums = Spans.sums(samples)
Program.print({ measured_ns: measured_ns, samples: stats[:waits_sampled][:samples],
                alone_ns: sums.to_h { |span, states| [span, states.fetch(span, 0)] },
                # Who comes back from another wait has the GVL when the call returns.
                found_ns: sums.to_h { |span, states| [span, states.slice(span, "gvl").values.sum] } })
