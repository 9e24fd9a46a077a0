# frozen_string_literal: true

# What `require "pyroscope"` and `Pyroscope.configure` cost a process that starts, as medians.
#
#   ruby import_cost.rb [--rounds N]       prints JSON
#
# Interpreters that do both and interpreters that do nothing run in turn, each a fresh process. Clocks stand around the two
# statements, memory and threads are read before and behind them.
require_relative "program"
require "open3"
require "rbconfig"

STATEMENTS = <<~'RUBY'
  require "pyroscope"
  Pyroscope.configure(application_name: "import", server_address: "none", log_level: "error") || abort("it does not run")
RUBY
PROGRAM = <<~'RUBY'
  def read
    pages = File.read("/proc/self/statm").split[1].to_i
    [Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond), Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :nanosecond),
     pages * 4096, Dir.children("/proc/self/task").size]
  end
  read
  before = read
  %s
  puts read.zip(before).map { |now, then_| now - then_ }.join(" ")
RUBY

def run(statements)
  # Bundler would have loaded some of it already.
  output, status = Open3.capture2({ "RUBYOPT" => nil }, RbConfig.ruby, "-e", format(PROGRAM, statements))
  raise "it ended with #{status}" unless status.success?

  %i[wall_ns cpu_ns memory threads].zip(output.split.map(&:to_i)).to_h
end

rounds = Program.options(rounds: 10)[:rounds]
run(STATEMENTS)
ours, bare = [], []
rounds.times { ours << run(STATEMENTS); bare << run("") }
difference = ->(name) { Program.median(ours.map { |each| each[name] }) - Program.median(bare.map { |each| each[name] }) }
Program.print({ wall_ms: difference.(:wall_ns) / 1e6, cpu_ms: difference.(:cpu_ns) / 1e6, mib: difference.(:memory) / (1024.0 * 1024.0),
                threads: difference.(:threads) })
