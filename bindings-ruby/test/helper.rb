# frozen_string_literal: true

require "minitest/autorun"
require "opentelemetry/sdk"
require "open3"
require "rbconfig"
require "tmpdir"
require "pyroscope"
require_relative "../../tests/support/ruby/profile"
require_relative "../../tests/support/ruby/programs"

# Programs that tests run, and work for them.
module Children
  LIB = File.expand_path("../lib", __dir__)
  WORK = File.expand_path("support/work", __dir__)
  Ended = Struct.new(:output, :errors, :status)

  # Runs a program in a process of its own.
  def run_ruby(code, *arguments, environment: {}, options: [])
    command = [RbConfig.ruby, *options, "-I", LIB, "-r", WORK, "-e", code, *arguments]
    output, errors, status = Open3.capture3({ **PROGRAMS, **environment }, *command)
    Ended.new(output, errors, status)
  end

  # The same; it must succeed, and say nothing on the standard error.
  def assert_ruby(code, *arguments, **options)
    ended = run_ruby(code, *arguments, **options)
    assert ended.status.success?, "#{ended.status}: #{ended.output}#{ended.errors}"
    assert_empty ended.errors
    ended.output
  end

  # Runs a program that gets a folder for profiles as its first argument; returns the samples that it left.
  def samples_of(code, *arguments, **options)
    Dir.mktmpdir do |folder|
      assert_ruby(code, "file://#{folder}", *arguments, **options)
      Profile.of_folder(folder)
    end
  end

  # CPU nanoseconds of the samples that the block is true for.
  def weight(samples, &block)
    samples.select(&block).sum(&:weight)
  end
end

Minitest::Test.include(Children)
