# frozen_string_literal: true

# Fibers of Async that are suspended, many at once, a root span each: how long the spans were in all, what the profile has of it and
# the profiler says was lost, and whether the stacks of what they await are right.
#
#   ruby flows.rb --flows 1000 --seconds 30 --mean 12      prints JSON
#
# A fiber awaits again and again: a sleep, a condition, a queue or a semaphore, for a random time, through a chain of methods that is
# as deep as its span's name says, and whose names say which chain it is. In between it burns a little CPU time.
require_relative "spans"
require "async"
require "async/semaphore"

# Does what is due, every five milliseconds, in a fiber of its own, which is in no span.
class Clock
  def initialize
    @actions = []
  end

  def later(seconds, &action)
    due = Spans.now_ns + (seconds * 1e9)
    # The first one is the last.
    @actions.insert(@actions.bsearch_index { |other, _| other <= due } || -1, [due, action])
  end

  def run
    loop do
      sleep(0.005)
      @actions.pop.last.call while @actions.any? && @actions.last.first <= Spans.now_ns
    end
  end
end

module Flows
  WAITS = %i[sleeps awaits_condition pops_queue acquires_semaphore].freeze
  # Methods between the handler and what awaits, at most.
  DEPTHS = 6
  # How long it takes until all are under way, in parts of their length.
  START = 0.2
  CLOCK = Clock.new

  class << self
    # How long all spans were, nanoseconds.
    attr_reader :wall_ns

    (1..DEPTHS).each do |depth|
      (1..depth).each do |level|
        called = level == 1 ? "send(wait, seconds)" : "chain_#{depth}_#{level - 1}(wait, seconds)"
        eval("def chain_#{depth}_#{level}(wait, seconds) = #{called}", binding, __FILE__, __LINE__)
      end
    end

    # The methods of a wait, innermost first, of which a method names no more than one chain.
    def chain(depth, wait) = [wait, *(1..depth).map { |level| "chain_#{depth}_#{level}" }, "handle"]

    def handle(number, seconds, mean)
      chance, depth = Random.new(number), (number % DEPTHS) + 1
      Spans::TRACER.in_span("depth #{depth}") do
        began_ns = Spans.now_ns
        # So that those that begin at one instant do not end at one.
        lengths(chance, seconds * chance.rand(0.8..1.0), mean).each do |length|
          public_send(:"chain_#{depth}_#{depth}", WAITS.sample(random: chance), length)
          300.times { |value| value + 1 }
        end
        @wall_ns = (@wall_ns || 0) + Spans.now_ns - began_ns
      end
    end

    def run(flows, seconds, mean)
      Sync do |top|
        clock = top.async { CLOCK.run }
        began_ns = Spans.now_ns
        tasks = Array.new(flows) do |number|
          sleep([(seconds * START * number / flows) - ((Spans.now_ns - began_ns) / 1e9), 0].max)
          top.async { handle(number, seconds, mean) }
        end
        tasks.each(&:wait)
        clock.stop
      end
    end

    # What is wrong with the stack of an await, if anything: it has the methods of the program, of one chain and all.
    def mistake(sample)
      own = sample.frames.filter_map { |function, file, _| function[/\w+\z/] if file == __FILE__ }
      found = own.take(own.index("handle").to_i + 1)
      depth = Integer(sample.labels["span_name"][/\d+/])
      is_right = WAITS.include?(found.first&.to_sym) && found == chain(depth, found.first) && sample.functions.first == "(fiber waits)"
      "#{sample.labels["span_name"]}: #{sample.functions.join(" < ")}" unless is_right
    end

    private

    def sleeps(seconds) = sleep(seconds)

    def awaits_condition(seconds)
      condition = Async::Condition.new
      CLOCK.later(seconds) { condition.signal }
      condition.wait
    end

    def pops_queue(seconds)
      queue = Queue.new
      CLOCK.later(seconds) { queue << 1 }
      queue.pop
    end

    def acquires_semaphore(seconds)
      semaphore = Async::Semaphore.new(1)
      semaphore.acquire
      CLOCK.later(seconds) { semaphore.release }
      semaphore.acquire
    end

    # Seconds of the waits of a flow that lasts so long.
    def lengths(chance, seconds, mean)
      found = []
      found << [seconds - found.sum, mean * chance.rand(0.2..1.8)].min while found.sum < seconds
      found
    end
  end
end

options = Program.options(flows: 10, seconds: 10.0, mean: 0.25)
# Of what was lost the rings had no room.
stats = {}
samples = Spans.profiled(stats, sample_rate: 1_000) { Flows.run(*options.values_at(:flows, :seconds, :mean)) }
awaits = samples.select { |sample| sample.labels["state"] == "await" }
mistakes = awaits.filter_map { |sample| Flows.mistake(sample) }
Program.print({ found_ns: samples.sum(&:weight), wall_ns: Flows.wall_ns, lost_ns: stats[:waits_dropped_ring][:weight], awaits: awaits.size,
                wrong: mistakes.size, texts: mistakes.first(5) })
