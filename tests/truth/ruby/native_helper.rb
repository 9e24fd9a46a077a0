# frozen_string_literal: true

require "minitest/autorun"
require "json"
require "open3"
require "rbconfig"
require_relative "../../support/ruby/profile"
require_relative "../../support/ruby/programs"

# Native tests run programs of their own: a crash fails a test and not the run.
class NativeTest < Minitest::Test
  LIB = File.expand_path("../../../bindings-ruby/lib", __dir__)

  # Runs the program of a file, or code after `require "spans"`; it must succeed and say nothing on the standard error.
  def run_program(program, *arguments, options: [], environment: {})
    program = ["-r", File.join(__dir__, "spans.rb"), "-e", program] unless program.end_with?(".rb")
    program = [program] if program.is_a?(String)
    command = [RbConfig.ruby, *options, "-I", LIB, *program, *arguments]
    output, errors, status = Open3.capture3({ **PROGRAMS, **environment }, *command)
    assert status.success?, "#{command.last(3)}: #{status}\n#{output}#{errors}"
    assert_empty errors
    output
  end

  # The same; what it printed as JSON.
  def result_of(...)
    JSON.parse(run_program(...), symbolize_names: true)
  end

  # With the interpreter alone and, where there is one, with its compiler.
  def self.each_mode(name, &test)
    modes = { interpreter: [] }
    modes[:yjit] = ["--yjit"] if system(PROGRAMS, RbConfig.ruby, "--yjit", "-e", "", err: File::NULL)
    modes.each { |mode, options| define_method(:"test_#{name}_#{mode}") { instance_exec(options, &test) } }
  end
end
