# frozen_string_literal: true

require_relative "../../truth/ruby/native_helper"

# Each wait of a program that waits in every way becomes a sample, see waits.rb: none is wrong, and none is lost.
class WaitsSoakTest < NativeTest
  def test_of_the_samples_of_all_waits_none_is_wrong_and_none_is_lost
    output = run_program(File.join(__dir__, "waits_soak.rb"), "4")
    waits, wrong, _dropped, lost, status = output.lines.first.split.drop(1).map { |number| Integer(number) }
    assert_equal [0, 0, 0], [wrong, lost, status], output
    assert_operator waits, :>, 100, output
  end
end
