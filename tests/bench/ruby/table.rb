# frozen_string_literal: true

# Runs the measurements of `ci/bench ruby` and prints their table.
#
#   ruby table.rb --to FOLDER [--quick] [--rows LIST] [--peers VERSION=COMMAND] VERSION=COMMAND ...
#
# COMMAND runs that Ruby, with our gem, or with the other profilers.
#
# Each program runs in a process of its own. What is judged by counts and CPU time alone runs two at a time; what is timed
# runs alone, after it.
require "optparse"
require_relative "rows"

BEGAN = Process.clock_gettime(Process::CLOCK_MONOTONIC)
def seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - BEGAN
def say(text) = $stdout.puts(format("[%4d s] %s", seconds, text))
def load_average = File.read("/proc/loadavg").to_f

def measure(plan, ruby)
  cell =
    begin
      plan.measure.call(ruby)
    rescue Failed => error
      Cell.new("failed", false, { failed: error.message })
    end
  say "#{plan.row.what}, Ruby #{ruby.version}: #{cell.text}"
  plan.row.cells[ruby.version] = cell
end

def table(rows, versions)
  lines = [["what", "bound", *versions.map { |version| "Ruby #{version}" }, ""]]
  lines += rows.map { |row| [row.what, row.bound, *versions.map { |version| row.cells[version]&.text || "-" }, row.verdict] }
  widths = lines.transpose.map { |column| column.map(&:size).max }
  lines.map { |line| line.zip(widths).map { |text, width| text.ljust(width) }.join("  ").rstrip }.join("\n")
end

$stdout.sync = true
options = { rows: "all" }
OptionParser.new { |parser| parser.on("--to FOLDER").on("--quick").on("--rows LIST").on("--peers RUBY") }.parse!(into: options)
rubies = ARGV.map { |argument| Interpreter.new(*argument.split("=", 2)) }
wanted = options[:rows] == "all" ? Rows::GROUPS : options[:rows].split(",")
unknown = wanted - Rows::GROUPS
abort "--rows: #{unknown.join(",")} is not allowed; allowed: #{Rows::GROUPS.join(", ")}" if unknown.any? || wanted.empty?

peers = options.key?(:peers) ? [Interpreter.new(*options[:peers].split("=", 2))] : []
all = Rows.new(options[:quick], peers.to_h { |peer| [peer.version, peer] })
plans = Rows::GROUPS.select { |group| wanted.include?(group) }.flat_map { |group| all.of(group) }
together, alone = plans.partition { |plan| !plan.alone }.map { |some| some.product(rubies) }
say "#{together.size} measurements two at a time, then #{alone.size} alone"
loads = [load_average]
left = Queue.new(together).close
2.times.map { Thread.new { while (plan, ruby = left.pop) do measure(plan, ruby) end } }.each(&:join)
loads << load_average
alone.each { |plan, ruby| measure(plan, ruby) }
loads << load_average

text = +"#{table(plans.map(&:row), rubies.map(&:version))}\n\n"
text << "Two values: the interpreter alone · with YJIT. Truth: half of the samples in each.\n"
text << format("%.0f minutes; 1-minute load average before, between what runs two at a time and what runs alone, after: %s\n", seconds / 60, loads.join(", "))
text << "--quick: too few samples to judge by\n" if options[:quick]
File.write(File.join(options[:to], "ruby.txt"), text)
rows = plans.map { |plan| { what: plan.row.what, bound: plan.row.bound, verdict: plan.row.verdict, cells: plan.row.cells.transform_values(&:to_h) } }
File.write(File.join(options[:to], "ruby.json"), JSON.pretty_generate({ load_average: loads, quick: options[:quick] == true, rows: rows }))
puts "\n#{text}"
failures = plans.flat_map { |plan| plan.row.cells.map { |version, cell| [plan.row.what, version, cell.numbers] } }
failures = failures.select { |_, _, numbers| numbers.is_a?(Hash) && numbers.key?(:failed) }
failures.each { |what, version, numbers| warn "could not be measured: #{what}, Ruby #{version}: #{numbers[:failed]}" }
exit(failures.empty?)
