# frozen_string_literal: true

# Runs stress.rb in a process of its own and prints what came of it.
#
#   ruby soak.rb SECONDS RATE [OPTION OF RUBY]     a row of the table of `ci/soak ruby`; ends with code 1 if anything was wrong
require "json"
require "open3"
require "rbconfig"

gem_folder = File.expand_path("../../../bindings-ruby", __dir__)
seconds, rate, *options = ARGV
output, errors, status = Open3.capture3(
  RbConfig.ruby, *options, "-I", File.join(gem_folder, "lib"), File.join(__dir__, "stress.rb"), seconds, rate, "wall"
)
result = status.success? ? JSON.parse(output, symbolize_names: true) : {}
odd = result.values_at(:odd_names, :odd_calls, :odd_spans).compact.flatten(1)
lost = result.fetch(:taken, 0) - result.fetch(:uploaded, 0) - result.fetch(:dropped, 0)
print format("%-14s%10d%10d%8d%12d%8d%6s\n", [RUBY_VERSION, *options.grep("--yjit")].join(" "), result.fetch(:taken, 0), result.fetch(:dropped, 0),
             result.fetch(:odd, 0), result.fetch(:unreadable, 0), lost, status.exitstatus || 128 + status.termsig)
odd.each { |what| puts "  #{what}" }
puts errors.lines.first(40) unless errors.empty?
exit(status.success? && result[:odd] <= result[:odd_allowed] && lost.zero? && result[:taken].positive?)
