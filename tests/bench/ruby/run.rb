# frozen_string_literal: true

# One measurement: a program in a process of its own, what it printed, and the cell of the table.
require "json"
require "open3"

# What the table shows, whether it is within the bound, and all numbers.
Cell = Struct.new(:text, :good, :numbers)

# A row, and by column what was measured.
Row = Struct.new(:what, :bound, :cells) do
  def initialize(what, bound) = super(what, bound, {})

  def verdict
    judged = cells.values.map(&:good).compact
    judged.empty? ? "" : judged.all? ? "pass" : "MISS"
  end
end

# A measurement that could not be made.
Failed = Class.new(StandardError)

# A Ruby with the gem and with what the programs need.
class Interpreter
  FOLDER = __dir__
  # A program that takes longer is stuck.
  TIMEOUT = 600

  # Its version, and its modes, each with the option that makes it.
  attr_reader :version, :modes

  # `command` runs it, with whatever arguments.
  def initialize(version, command)
    @version, @command = version, command
    @modes = { "" => "-W1", "YJIT" => "--yjit" }.select { |_, option| system(command, option, "-e", "", err: File::NULL) }
    @records = {}
  end

  # What a program of this folder printed.
  def run(mode, script, *arguments, before: [])
    command = [*before, "timeout", "--kill-after=5", TIMEOUT.to_s, @command, modes.fetch(mode), File.join(FOLDER, script), *arguments.map(&:to_s)]
    output, errors, status = Open3.capture3(*command)
    raise Failed, "#{script} #{arguments.join(" ")}: #{status}: #{errors[-1_000..] || errors}" unless status.success? && !output.empty?

    JSON.parse(output.lines.last, symbolize_names: true)
  end

  # The same, run once for all rows that ask for it. For what is measured alone.
  def run_once(mode, script, *arguments)
    @records[[mode, script, arguments]] ||= run(mode, script, *arguments)
  end
end
