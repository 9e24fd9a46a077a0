# frozen_string_literal: true

require_relative "native_helper"

# Fifteen seconds of everything that moves frames, see stress_work.rb, under 5,000 signals a second and thread: no crash, and nothing in the profile that cannot be.
class StressTest < NativeTest
  each_mode("stress") do |options|
    result = result_of("stress.rb", ENV.fetch("STRESS_SECONDS", "15"), "5000", "wall", options: options)
    puts "#{RUBY_VERSION} #{options.join}: #{result.except(:odd_names, :odd_calls, :odd_spans)}"
    assert_empty result[:odd_names]
    assert_empty result[:odd_calls]
    assert_empty result[:odd_spans]
    assert_equal result[:taken], result[:uploaded] + result[:dropped]
    # On a machine that has other work, most signals of a thread become one.
    assert_operator result[:taken], :>, 200
  end
end
