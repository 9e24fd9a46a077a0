# frozen_string_literal: true

# CPU time seen in profiles against CPU time burnt, as the kernel counts it for the process, the profiler's own threads
# left out.
#
#   ruby cpu.rb KIND [--rate HZ] [--seconds N]      prints JSON; kinds are below
require_relative "program"
require "digest"
require "zlib"
require "pyroscope"

module Kinds
  TEXT = ("abc def " * 20_000).freeze
  BYTES = ("x" * 2_000_000).freeze
  NUMBERS = Array.new(100_000) { |number| number * 7_919 % 100_003 }.freeze

  module_function

  def one = busy(20)
  # Longer than the interpreter's time slice, so that they take turns.
  def eight = 8.times.map { Thread.new { busy(150) } }.each(&:join)
  def threads_of(milliseconds) = 20.times.map { Thread.new { busy(milliseconds) } }.each(&:join)
  def threads_1ms = threads_of(1)
  def threads_5ms = threads_of(5)
  def threads_20ms = threads_of(20)
  def sort = NUMBERS.sort_by { |number| -number }.sort
  def gsub = TEXT.gsub(/d(e)f/) { $1 }
  def sha256 = Digest::SHA256.digest(BYTES)
  # Both without the interpreter's lock, at the same time.
  def zlib = 2.times.map { Thread.new { 5.times { Zlib.deflate(BYTES) } } }.each(&:join)

  # Most of the time is the collector's.
  def collect
    @kept = Array.new(100_000) { "x" * 40 }
    GC.start
  end

  def bursts
    busy(5)
    sleep(0.005)
  end
end

kind = ARGV.fetch(0)
raise ArgumentError, "KIND: #{kind} is not allowed; allowed: #{Kinds.singleton_methods.join(", ")}" unless Kinds.respond_to?(kind)

options = Program.options(rate: 100, seconds: 4.0)
stats = {}
burnt = own = 0
samples = Program.profiled(sample_rate: options[:rate]) do
  before, end_ns = Program.process_cpu_ns, Program.process_cpu_ns + (options[:seconds] * 1e9)
  Kinds.send(kind) while Program.process_cpu_ns < end_ns
  burnt = Program.process_cpu_ns - before
  stats = Pyroscope.stats
end
own = stats[:own_cpu_ns]
seen = samples.sum(&:weight)
Program.print({ ratio: seen / (burnt - own).to_f, seen_ns: seen, burnt_ns: burnt, own_ns: own, samples: stats[:taken][:samples],
                unsampled: stats[:threads_unsampled] })
