# frozen_string_literal: true

require "json"
require "open3"
require_relative "../../support/ruby/profile"
require_relative "waits_table"

# Looks at each sample of waits.rb, as its profiles come.
class WaitsJudge
  # What a sample is judged by.
  Wait = Struct.new(:functions, :span, :state, :flow)

  # Of samples of waits, by process: how many waits they are, and how long. Mistakes, each with its number.
  attr_reader :waits, :weight, :mistakes

  def initialize(folder)
    @folder = folder
    @waits = Hash.new(0)
    @weight = Hash.new(0)
    @mistakes = Hash.new(0)
    @known = {}
  end

  def wrong = @mistakes.values.sum

  # Reads the profiles that are there, and removes them.
  def take
    files = Dir[File.join(@folder, "*.pb.gz")]
    return if files.empty?

    output, errors, status = Open3.capture3(Profile::SERVER, "--read", *files)
    raise errors unless status.success?

    output.force_encoding(Encoding::UTF_8).each_line("\n") do |line|
      read = JSON.parse(line)
      process = Integer(read.fetch("file")[/-(\d+)-\d+\.pb\.gz\z/, 1])
      Profile.new(read).samples.each { |sample| look(sample, process) if sample.values.size == 2 }
    end
    File.delete(*files)
  end

  private

  def look(sample, process)
    functions = sample.functions
    state = sample.labels["state"]
    # Derived of CPU samples.
    return if %w[cpu gc].include?(state) || functions.first == "(waits for a CPU)"

    count, ns = sample.values
    @waits[process] += count
    @weight[process] += ns
    wait = Wait.new(functions, sample.labels["span_name"], state, sample.labels["flow"])
    mistake = @known.fetch(wait) { @known[wait] = mistake_of(wait) }
    @mistakes[mistake] += count if mistake
  end

  def mistake_of(wait)
    own = wait.functions.filter_map { |name| name[WaitsTable::OWN, 1]&.to_sym }.chunk_while { |a, b| a == b }.map(&:first)
    wrong = span_mistake(wait, own) || stack_mistake(own) || flow_mistake(wait, own) || state_mistake(wait, own)
    "#{wrong}: #{wait.state}, in #{wait.span}: #{wait.functions.first(4).join(" < ")} ... #{own.join(" < ")}" if wrong
  end

  def span_mistake(wait, own) = ("span" unless WaitsTable.spans(own).include?(wait.span))

  def stack_mistake(own)
    own.zip(own.drop(1)).each do |callee, caller|
      callers = WaitsTable.callers(callee)
      return "#{callee} from #{caller.inspect}" unless callee.start_with?("handler_") || callers&.include?(caller)
    end
    nil
  end

  def flow_mistake(wait, own)
    # Also what a finalizer does there, before the child's own span begins or after it has ended.
    is_in_parents = own.include?(WaitsTable::IN_PARENTS_SPAN) && wait.span == WaitsTable::PARENTS_SPAN
    is_beside = own.last == WaitsTable::CONCURRENT || is_in_parents
    ("flow" unless (wait.flow == "concurrent") == is_beside)
  end

  def state_mistake(wait, own)
    ("state" unless WaitsTable.waits?(own.first, wait.state, *leaf_and_method(wait)))
  end

  def leaf_and_method(wait) = [wait.functions[0], wait.functions[1].to_s[/[^.#]+\z/]]
end
