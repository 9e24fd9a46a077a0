# frozen_string_literal: true

require_relative "helper"
require "fileutils"

# The gem where nothing is compiled for the Ruby that runs: the program works as without a profiler, and is told why once.
class AbsentTest < Minitest::Test
  MINOR = RUBY_VERSION[/\A\d+\.\d+/]

  # Runs a program on a copy of the gem without what was compiled, or with this instead.
  def without_native_part(code, compiled: nil)
    Dir.mktmpdir do |folder|
      Dir.glob("**/*.rb", base: LIB) do |file|
        FileUtils.mkdir_p(File.dirname(File.join(folder, file)))
        FileUtils.cp(File.join(LIB, file), File.join(folder, file))
      end
      if compiled
        FileUtils.mkdir_p(File.join(folder, "pyroscope_otel", MINOR))
        File.write(File.join(folder, "pyroscope_otel", MINOR, "pyroscope_otel.#{RbConfig::CONFIG["DLEXT"]}"), compiled)
      end
      yield assert_ruby(code, folder, options: ["-w", "-I", folder]).lines(chomp: true)
    end
  end

  EVERYTHING = <<~'RUBY'
    abort "another copy was loaded" unless $LOADED_FEATURES.grep(%r{/pyroscope.*\.rb\z}).all? { |file| file.start_with?(ARGV[0]) }
    results = Array.new(2) { Pyroscope.configure(application_name: "app", server_address: "none", tags: { region: "eu" }) { |config| config.sample_rate = 50 } }
    abort "configure: #{results}" unless results == [false, false]
    processor = Pyroscope::Otel::SpanProcessor.new("app", "http://localhost:4040", scope: :all, inherit_fibers: true)
    processor.root_span_only = true
    processor.add_span_name = false
    tracer(processor).in_span("works") do |span|
      abort "no span" unless span.context.valid? && OpenTelemetry::Trace.current_span.equal?(span)
      abort "attributes without a profile: #{span.attributes}" unless span.attributes.nil? || span.attributes.empty?
      abort "Fiber" unless Fiber.new { tracer(processor).in_span("in it") { burn(1) } }.resume
    end
    abort "force_flush" unless processor.force_flush(timeout: 1) == 0 && processor.shutdown == 0
    tagged = Pyroscope.tag_wrapper({ tenant: "a" }) { Pyroscope.tag_wrapper({ tenant: "b" }) { :result } }
    abort "tag_wrapper: #{tagged}" unless tagged == :result
    Pyroscope._add_tags({ tenant: "a" })
    Pyroscope._remove_tags(1, { tenant: "a" })
    abort "thread_id" unless Pyroscope.thread_id == Thread.current.native_thread_id
    abort "current_config" unless Pyroscope.current_config.sample_rate == 50
    abort "running" if Pyroscope.running? || Pyroscope.flush || Pyroscope.stop || Pyroscope.shutdown
    abort "stats" if Pyroscope.stats.fetch(:taken).fetch(:samples).positive?
    abort "error" unless Pyroscope::Error < StandardError
    Pyroscope.initialize_rails_hooks
    Process.wait(fork { exit!(Pyroscope.configure(application_name: "child") ? 1 : 0) })
    abort "fork" unless $?.success?
    begin
      Pyroscope.configure(sample_rate: -1)
    rescue ArgumentError => error
      puts error.message
    end
    puts Pyroscope.stats.keys.join(" ")
  RUBY

  def test_everything_works_as_without_a_profiler_and_one_warning_says_what_to_install
    without_native_part(EVERYTHING) do |said|
      assert_equal 3, said.size, said.join("\n")
      assert_match(/\AWARN pyroscope: no profiles are taken, spans go on working: .* nothing is compiled for Ruby #{MINOR}\./, said[0])
      assert_includes said[0], "gem install pyroscope-otel --platform ruby"
      assert_match(/\Asample_rate: -1 is not allowed/, said[1])
      assert_equal Pyroscope.stats.keys.join(" "), said[2]
    end
  end

  def test_a_compiled_part_that_does_not_load_is_named_with_the_reason
    without_native_part(EVERYTHING, compiled: "no library") do |said|
      assert_match(/what is compiled for Ruby #{MINOR} does not load \(.*pyroscope_otel.*\)/, said[0])
      assert_equal 3, said.size, said.join("\n")
    end
  end

  def test_a_program_that_only_has_spans_is_told_at_the_first
    without_native_part('2.times { tracer.in_span("works") { puts "span" } }') do |said|
      assert_match(/nothing is compiled/, said[0])
      assert_equal %w[span span], said[1..]
    end
  end

  def test_a_program_that_switched_profiling_off_is_told_nothing
    without_native_part('abort if Pyroscope.configure(application_name: "app", enabled: false)') { |said| assert_empty said }
  end

  def test_what_stands_in_has_each_method_of_the_native_part_that_the_gem_calls
    called = Dir[File.join(LIB, "**/*.rb")].flat_map { |file| File.read(file).scan(/\bNative\.([a-z_]+\??)/).flatten }.uniq
    there = File.read(File.join(LIB, "pyroscope_otel/absent.rb")).scan(/^      def ([a-z_]+\??)/).flatten
    assert_operator called.size, :>, 10
    assert_empty called - there
  end
end
