# frozen_string_literal: true

# Runs waits.rb in a process of its own, and judges its profiles as they come.
#
#   ruby waits_soak.rb SECONDS [OPTION OF RUBY]     a row of the table of `ci/soak waits ruby`; ends with code 1 if anything was wrong
require "rbconfig"
require "tmpdir"
require_relative "../../support/ruby/programs"
require_relative "waits_judge"

# What the machine may be late by.
PATIENCE = 120

gem_folder = File.expand_path("../../../bindings-ruby", __dir__)
seconds, *options = ARGV
Dir.mktmpdir do |folder|
  profiles, output, errors = %w[profiles output errors].map { |name| File.join(folder, name) }
  Dir.mkdir(profiles)
  command = [RbConfig.ruby, "-W0", *options, "-I", File.join(gem_folder, "lib"), File.join(__dir__, "waits.rb"), seconds, profiles]
  program = spawn(PROGRAMS, *command, out: output, err: errors, pgroup: true)
  judge = WaitsJudge.new(profiles)
  late = Process.clock_gettime(Process::CLOCK_MONOTONIC) + Float(seconds) + PATIENCE
  until Process.wait(program, Process::WNOHANG)
    judge.take
    sleep(0.2)
    Process.kill(:ABRT, program) if Process.clock_gettime(Process::CLOCK_MONOTONIC) > late
  end
  status = $?
  begin
    # Children that wait for ever are left where it ended early.
    Process.kill(:KILL, -program)
  rescue Errno::ESRCH
    # None, as it must be.
  end
  judge.take
  result = status.success? ? JSON.parse(File.read(output), symbolize_names: true) : {}
  tallies = result.fetch(:stats, {}).select { |name, value| name.start_with?("waits_") && value.is_a?(Hash) }
  count = ->(name) { tallies.dig(name, :samples) || 0 }
  dropped = %i[waits_dropped_ring waits_dropped_busy waits_dropped_thread].sum(&count)
  lost = count.call(:waits_taken) - %i[waits_sampled waits_outside waits_pending].sum(&count) - dropped
  # Each wait stands for itself, so the profiles have what the samples were to the nanosecond.
  unseen = (tallies.dig(:waits_sampled, :weight) || 0) - judge.weight[program]
  print format("%-14s%10d%8d%10d%8d%6s\n", [RUBY_VERSION, *options.grep("--yjit")].join(" "), judge.waits[program], judge.wrong, dropped, lost,
               status.exitstatus || 128 + status.termsig)
  judge.mistakes.sort_by { |_, times| -times }.first(20).each { |what, times| puts "  #{times} #{what}" }
  puts "  #{unseen} ns of the waits that became samples are in no profile" unless unseen.zero?
  puts "  #{count.call(:waits_pending)} waits are pending" if count.call(:waits_pending).positive?
  nameless = result.dig(:stats, :spans_lost) || 0
  puts "  #{nameless} samples have a span of which nothing was told" if nameless.positive?
  puts "  the profiler did not stop in time" if result[:stopped] == false
  if result.fetch(:stuck, 0).positive?
    puts "  not ours: #{result[:stuck]} of #{3 * result.dig(:rounds, :fork)} children waited for ever in Ruby's own fork"
  end
  puts result.fetch(:skipped, []).map { |what| "  #{what}" }, File.readlines(errors).first(40)
  exit(1) unless status.success? && result[:stopped] && judge.wrong.zero? && lost.zero? && unseen.zero?
end
