# frozen_string_literal: true

# Whether each sample carries the span that the program was in.
#
#   ruby truth.rb ROW [--samples N] [--clock cpu|wall] [--rate HZ]     prints JSON; rows are in truth_rows.rb
#
# Each span runs one of the methods `span_0` to `span_255` and is named like it, so a sample's innermost such method says
# which span it has to carry: an id that was started with this number, with its name and trace. What is burnt in no such
# method, or in `outside`, has to carry none. The program ends when as much CPU was burnt as makes that many samples.
require_relative "program"
require_relative "truth_rows"
require "async"
require "opentelemetry/sdk"
require "pyroscope-otel"
require "timeout"

OpenTelemetry.logger = Logger.new(File::NULL)

module Truth
  NUMBERS = 256
  NUMBERS.times { |number| eval("def self.span_#{number} = yield", binding, __FILE__, __LINE__) }

  @next = 0
  # By span id: its number and its trace id.
  @spans = {}
  @burnt = 0.0

  class << self
    # The least that is burnt, milliseconds of CPU.
    attr_accessor :tracer, :scope, :rate, :least
    attr_accessor :burnt
    attr_reader :spans

    def enough? = @burnt >= least

    # A span, and the block in its method. With scope :root the method is that of the local root, which samples carry.
    # The block gets the span and what `inside` takes.
    def span(root = nil)
      number = scope == :root && root || (@next = (@next + 1) % NUMBERS)
      tracer.in_span("span #{number}") do |span|
        @spans[span.context.hex_span_id] = [number, span.context.hex_trace_id] unless scope == :root && root
        inside(number) { yield number, span }
      end
    end

    # The block in the method of that number: for code that has made that span current in another way.
    def inside(number, &block)
      send("span_#{number}", &block)
    end

    # The block where no span is current, though one's method called it.
    def outside = yield

    def work(milliseconds)
      busy(milliseconds)
      @burnt += milliseconds
    end

    # What the samples of `busy` carry, against what they should.
    def judge(samples)
      found = Hash.new(0)
      texts = []
      samples.each do |sample|
        next unless sample.functions.any? { |name| name.end_with?("busy") }

        count = (sample.weight * rate / 1e9).round
        number = sample.functions.find { |name| name.match?(/[.#](span_\d+|outside)\z/) }&.slice(/\d+\z/)&.to_i
        verdict = verdict_of(sample, number)
        found[verdict] += count
        texts << "#{verdict}: #{sample.labels}, #{sample.functions.first(8).join(" < ")}" unless verdict == :right || texts.size == 5
      end
      { judged: found.values.sum, wrong: found[:wrong], missing: found[:missing], texts: texts }
    end

    private

    def verdict_of(sample, number)
      id = sample.span_id
      return id.nil? ? :right : :wrong if number.nil?
      return :missing if id.nil?

      right = @spans[id] == [number, sample.labels["trace_id"]] && sample.labels["span_name"] == "span #{number}"
      right ? :right : :wrong
    end
  end
end

def span(...) = Truth.span(...)
def inside(...) = Truth.inside(...)
def work(...) = Truth.work(...)

options = Program.options(samples: 5_000, clock: "cpu", rate: 250)
row = TruthRows::ROWS.fetch(ARGV.fetch(0))
Truth.scope, Truth.rate = row.scope, options[:rate]
provider = OpenTelemetry::SDK::Trace::TracerProvider.new
provider.add_span_processor(Pyroscope::Otel::SpanProcessor.new(scope: row.scope))
Truth.tracer = provider.tracer("truth")

stats = {}
# By wall time, not each native thread is sampled from its begin to its end.
Truth.least = options[:samples] * (options[:clock] == "wall" ? 1_300.0 : 1_100.0) / options[:rate]
samples = Program.profiled(stats, sample_rate: options[:rate], wall_clock: options[:clock] == "wall", trace_id: true) do
  row.call until Truth.enough?
end
Program.print({ **Truth.judge(samples), taken: stats[:taken][:samples], dropped: stats[:dropped_ring][:samples],
                unreadable: stats[:stacks_unreadable], unresolved: stats[:frames_unresolved] })
