# frozen_string_literal: true

# Each public name of the gems pyroscope 1.1.7 and pyroscope-otel 0.2.0 is in ours, takes the same arguments, and has the
# same default.
require "json"
require "minitest/autorun"
require "open3"
require "rbconfig"

class SurfaceTest < Minitest::Test
  OURS = File.expand_path("../../../bindings-ruby/lib", __dir__)

  # By option: the default of ours, and why it is another.
  DIFFERENT_DEFAULTS = {
    "log_level" => "warn" # it speaks only when data is lost or late
  }.freeze

  def surface(*options)
    output, errors, status = Open3.capture3(RbConfig.ruby, *options, File.join(__dir__, "describe.rb"))
    assert status.success?, errors
    JSON.parse(output)
  end

  def setup
    @theirs = surface("-r", "bundler/setup")
    @ours = surface("-r", "bundler/setup", "-I", OURS)
  end

  def test_each_option_with_its_default
    assert_operator @theirs["options"].size, :>=, 16
    expected = @theirs["options"].merge(DIFFERENT_DEFAULTS)
    assert_equal expected, @ours["options"].slice(*expected.keys)
  end

  # Whether a call that suits one suits the other: required arguments first, and what may be left out behind them.
  def takes?(ours, theirs)
    needed = theirs.count("req")
    least = ours.count("req")
    most = ours.include?("rest") ? Float::INFINITY : least + ours.count("opt")
    needed.between?(least, most) && (theirs & %w[rest keyrest block] - %w[block]).all? { |kind| ours.include?(kind) || ours.include?("key") }
  end

  { "module" => 8, "processor" => 8 }.each do |part, least|
    define_method("test_each_method_of_the_#{part}") do
      assert_operator @theirs[part].size, :>=, least
      @theirs[part].each do |name, parameters|
        assert @ours[part].key?(name), "#{name} is not there"
        assert takes?(@ours[part][name], parameters), "#{name}: #{parameters} there, #{@ours[part][name]} here"
      end
    end
  end

  def test_the_processor_is_made_in_the_same_way
    assert_equal @theirs["accessors"], @ours["accessors"]
    assert_equal @theirs["endpoint"], @ours["endpoint"]
    assert takes?(@ours["new"], @theirs["new"])
  end
end
