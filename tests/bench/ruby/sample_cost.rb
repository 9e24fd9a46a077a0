# frozen_string_literal: true

# What a sample of a stack of 60 frames costs.
#
#   ruby sample_cost.rb warm|cold [--rate HZ] [--seconds N]      prints JSON, nanoseconds
#   ruby sample_cost.rb own [--rate HZ] [--seconds N]
#
# `warm` and `cold` time the interruption itself, in the thread that is sampled: the thread sends itself the signal that its
# timer would send (rt_tgsigqueueinfo lets a process forge SI_TIMER to itself; /proc/self/timers tells signal and value), so
# each sample is counted, walked and written into the ring like any other. It sends signal 0, which goes through the same
# call and delivers nothing, in turn with it. The cost is the difference of the medians: delivery by the kernel, handler,
# span, walk and ring are in it, the call itself and the clock are not. Every other signal 0 is the control. Signals for a
# thread that is long gone, which the handler leaves at once, tell what delivery alone takes.
#
#   warm    16 samples in a row from alternating lines, then a pause in which the ring is emptied
#   cold    64 MiB are read before each sample, which leaves nothing of the handler's in the caches
#
# `own` burns CPU in 100 functions that take turns: CPU of the profiler's threads as a share of a core (while it samples, and
# the end of a window at its rate, once in 10 s), and for a sample what it takes the program's threads to read it and to
# look names up, once a window for each function.
require_relative "program"
require "fiddle"
require "pyroscope"

module SampleCost
  FRAMES = 60
  BATCH = 16
  BUFFER = ("\0" * (64 << 20)).freeze
  SI_TIMER = -2
  SYS_RT_TGSIGQUEUEINFO = { "x86_64" => 297, "aarch64" => 240 }.fetch(RbConfig::CONFIG["host_cpu"])
  INT, LONG, POINTER = Fiddle::TYPE_INT, Fiddle::TYPE_LONG, Fiddle::TYPE_VOIDP
  # The interpreter's lock is kept, as while Ruby code runs.
  CALL = Fiddle::Function.new(Fiddle::Handle::DEFAULT["syscall"], [LONG, INT, INT, INT, POINTER], LONG, need_gvl: true)

  module_function

  # Signal and value of the timer that the profiler gave to this thread.
  def own_timer
    text = File.read("/proc/self/timers")
    found = text.scan(%r{signal: (\d+)/(\h+)\nnotify: signal/tid\.(\d+)}).find { |_, _, tid| tid.to_i == Process.pid }
    raise "the profiler gave this thread no timer" unless found

    [found[0].to_i, found[1].to_i(16)]
  end

  # siginfo_t of a timer's signal.
  def info(signal, value)
    Fiddle::Pointer[[signal, 0, SI_TIMER, 0, 0, 0, value].pack("l6Qx96").freeze]
  end

  # The kinds of calls: the list of their times, and the two arguments that make them.
  def turns
    signal, value = own_timer
    sampled, stale = info(signal, value), info(signal, value ^ (0xFFFF << 32))
    raise "rt_tgsigqueueinfo was refused" unless CALL.call(SYS_RT_TGSIGQUEUEINFO, Process.pid, Process.pid, signal, stale).zero?

    { bare: [0, sampled], sampled: [signal, sampled], control: [0, sampled], delivered: [signal, stale] }.map { |name, kind| [name, [], *kind] }
  end

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)

  def send_signal(signal, info)
    CALL.call(SYS_RT_TGSIGQUEUEINFO, Process.pid, Process.pid, signal, info)
  end

  def warm(turns)
    turns.each do |_, times, signal, info|
      (BATCH / 2).times do
        began = now
        send_signal(signal, info)
        times << now - began
        # The same from another line: a sample like the one before it would be a mere count in the ring.
        began = now
        send_signal(signal, info)
        times << now - began
      end
      sleep(0.004)
    end
  end

  def cold(turns)
    turns.each do |_, times, signal, info|
      BUFFER.include?("\1")
      began = now
      send_signal(signal, info)
      times << now - began
    end
  end

  def time_samples(mode, seconds)
    busy(5) until Pyroscope.stats[:taken][:samples].positive?
    turns = self.turns
    before = Pyroscope.stats[:taken][:samples]
    GC.start
    GC.disable
    ended = now + (seconds * 1e9)
    # `send_signal` and the call in it come on top.
    Program.at_depth(FRAMES - 4) { send(mode, turns) while now < ended }
    GC.enable
    raise "fewer were counted than timed" if Pyroscope.stats[:taken][:samples] - before < turns[1][1].size

    report(turns.to_h { |name, times, *| [name, times] })
  end

  def report(times)
    chance = Random.new(1)
    bare = times[:bare] + times[:control]
    again = ->(list) { Program.median(Array.new(list.size) { list[chance.rand(list.size)] }) }
    costs = Array.new(200) { again.(times[:sampled]) - again.(bare) }.sort
    { ns: Program.median(times[:sampled]) - Program.median(bare), low_ns: costs[4], high_ns: costs[-5],
      control_ns: Program.median(times[:bare]) - Program.median(times[:control]),
      delivery_ns: Program.median(times[:delivered]) - Program.median(bare), timed: times[:sampled].size }
  end
end

mode = ARGV.fetch(0)
options = Program.options(rate: 100, seconds: 10.0)
stats = {}
record = {}
samples = Program.profiled(stats, sample_rate: options[:rate], upload_interval: 600) do
  if mode == "own"
    Pyroscope.flush
    before = Pyroscope.stats
    Program.burn_at_depth(SampleCost::FRAMES, options[:seconds])
    after = Pyroscope.stats
    Pyroscope.flush
    own_ns = [before, after, Pyroscope.stats].map { |each| each[:own_cpu_ns] }
    record[:own_share] = (own_ns[1] - own_ns[0]) / 1e9 / options[:seconds] + (own_ns[2] - own_ns[1]) / 1e9 / 10
  else
    record = SampleCost.time_samples(mode, options[:seconds])
  end
end
taken = stats[:taken][:samples].to_f
record[:frames] = samples.group_by { |sample| sample.frames.size }.max_by { |_, some| some.sum(&:weight) }.first
record[:handler_ns] = (stats[:handler_ns] / taken).round
record[:drain_ns] = (stats[:drain_ns] / taken).round
record[:dropped] = stats[:dropped_ring][:samples]
Program.print(record)
