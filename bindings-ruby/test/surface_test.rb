# frozen_string_literal: true

require_relative "helper"

class SurfaceTest < Minitest::Test
  def test_each_way_to_load_it
    %w[pyroscope pyroscope/otel pyroscope-otel].each do |name|
      loaded = run_ruby("", options: ["-r", name])
      assert loaded.status.success?, loaded.errors
    end
    alone = Open3.capture2e(RbConfig.ruby, "-I", LIB, "-e", 'require "pyroscope"; exit !defined?(OpenTelemetry)')
    assert alone.last.success?, alone.first
  end

  def test_the_version_is_the_workspaces
    written = File.read(File.expand_path("../../Cargo.toml", __dir__))[/^version = "([^"]+)"/, 1]
    assert_equal written, Pyroscope::VERSION
  end

  def test_stats_add_up
    assert_ruby(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: "none")
      burn_until_sampled
      Pyroscope.flush
      stats = Pyroscope.stats
      sum = ->(*names) { names.sum { |name| stats.fetch(name).fetch(:weight) } }
      abort "nothing was taken" unless sum.call(:taken).positive?
      abort stats.inspect unless sum.call(:taken) == sum.call(:dropped_ring, :dropped_window, :pending, :encoded)
      parts = %i[queued uploaded refused dropped_queue dropped_old discarded]
      abort stats.inspect unless sum.call(:encoded) == sum.call(*parts)
    RUBY
  end

  def test_stop_is_false_where_the_last_profiles_were_not_delivered
    assert_ruby(<<~'RUBY')
      require "socket"
      server = TCPServer.new("127.0.0.1", 0)
      Pyroscope.configure(application_name: "app", server_address: "http://127.0.0.1:#{server.addr[1]}", upload_interval: 600)
      server.close
      burn_until_sampled
      abort "delivered" unless Pyroscope.stop.equal?(false)
      stats = Pyroscope.stats
      abort stats.inspect unless stats[:dropped_queue] == stats[:taken]
    RUBY
  end

  def test_messages_go_to_the_logger_that_was_chosen
    said = assert_ruby(<<~'RUBY')
      lines = []
      logger = Object.new
      logger.define_singleton_method(:add) { |level, text, name| lines << [level, text, name] }
      Pyroscope.logger = logger
      Pyroscope.configure(application_name: "app", server_address: "none", oncpu: false)
      puts lines.inspect
    RUBY
    assert_equal %([[2, "configure(oncpu: false): CPU time is always profiled; wall_time: true adds waiting time", "pyroscope"]]\n), said
  end

  def test_the_first_start_says_which_variables_ask_for_what_is_not_there_yet
    said = assert_ruby(<<~'RUBY')
      lines = []
      logger = Object.new
      logger.define_singleton_method(:add) { |_level, text, _name| lines << text }
      Pyroscope.logger = logger
      names = %w[ALLOCATION LOCK].map { |kind| "PYROSCOPE_PROFILING_#{kind}_ENABLED" }
      names.each { |name| ENV[name] = "true" }
      2.times { Pyroscope.configure(application_name: "app", server_address: "none", log_level: "info") }
      puts lines == names.map { |name| "#{name}: only CPU time is profiled yet" } || lines.inspect
    RUBY
    assert_equal "true\n", said
  end

  def test_the_wrong_name_of_wall_time_is_told_with_the_right_one
    said = assert_ruby(<<~'RUBY')
      logger = Object.new
      logger.define_singleton_method(:add) { |level, text, _name| puts "#{level} #{text}" }
      Pyroscope.logger = logger
      ENV["PYROSCOPE_PROFILING_WALL_TIME_ENABLED"] = "true"
      Pyroscope.configure(application_name: "app", server_address: "none")
    RUBY
    assert_equal "2 PYROSCOPE_PROFILING_WALL_TIME_ENABLED is not read; did you mean PYROSCOPE_PROFILING_WALLTIME_ENABLED?\n", said
  end

  def test_what_the_engine_says_reaches_the_logger_of_a_program_that_only_has_spans
    said = assert_ruby(<<~'RUBY')
      require "socket"
      server = TCPServer.new("127.0.0.1", 0)
      Pyroscope.configure(application_name: "app", server_address: "http://127.0.0.1:#{server.addr[1]}", upload_interval: 1)
      server.close
      tracer = tracer()
      told = false
      OpenTelemetry.logger.define_singleton_method(:add) { |_level, text, _name| told ||= text.include?("tried again") }
      deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 30
      tracer.in_span("span") { sleep(0.02) } until told || Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
      puts told
    RUBY
    assert_equal "true\n", said
  end

  def test_a_logger_that_raises_harms_nobody
    assert_ruby(<<~'RUBY')
      Pyroscope.logger = Object.new
      Pyroscope.configure(application_name: "app", server_address: "none", oncpu: false)
      abort unless Pyroscope.running?
    RUBY
  end

  def test_grafanas_gem_beside_ours_is_one_line_that_says_which_to_keep
    code = <<~'RUBY'
      Gem.loaded_specs["pyroscope"] = Gem::Specification.new("pyroscope", "1.1.7")
      2.times { Pyroscope.configure(application_name: "app", server_address: "none") }
    RUBY
    said = assert_ruby(code).lines
    assert_equal 1, said.size, said.join
    assert_includes said.first, "keep pyroscope-otel and remove pyroscope from the Gemfile"
  end

  def test_it_takes_the_place_of_grafanas_gem_that_was_loaded_before
    program = <<~'RUBY'
      module Pyroscope
        module Rust; end
        Config = Struct.new(:application_name)
        VERSION = "1.1.7"
      end
      require "pyroscope"
      Pyroscope.configure(application_name: "app", server_address: "none") || abort
      puts Pyroscope::VERSION
    RUBY
    output, errors, = Open3.capture3(RbConfig.ruby, "-w", "-I", LIB, "-e", program)
    assert_equal ["#{Pyroscope::VERSION}\n", ""], [output, errors]
  end
end
