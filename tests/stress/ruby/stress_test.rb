# frozen_string_literal: true

require_relative "../../truth/ruby/native_helper"

# Fifteen seconds of everything that moves frames, see stress_work.rb, under 5,000 signals a second and thread: no crash, and nothing in the profile that cannot be.
class StressTest < NativeTest
  each_mode("stress") do |options|
    result = result_of(File.join(__dir__, "stress.rb"), ENV.fetch("STRESS_SECONDS", "15"), "5000", "wall", options: options)
    odd, rest = result.partition { |name, _| %i[odd_names odd_calls odd_spans].include?(name) }.map(&:to_h)
    puts "#{RUBY_VERSION} #{options.join}: #{rest}"
    assert_operator result[:odd], :<=, result[:odd_allowed], odd.to_s
    assert_equal result[:taken], result[:uploaded] + result[:dropped]
    # On a machine that has other work, most signals of a thread become one.
    assert_operator result[:taken], :>, 200
  end
end
