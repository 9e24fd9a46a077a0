# frozen_string_literal: true

require_relative "helper"
require "pyroscope/otel"

class SpanProcessorTest < Minitest::Test
  def test_scope_root_gives_samples_the_local_root_and_it_alone_the_attribute
    samples = samples_of(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: ARGV[0])
      tracer = tracer()
      tracer.in_span("root") do |root|
        abort "root: #{root.attributes}" unless root.attributes["pyroscope.profile.id"] == root.context.hex_span_id
        tracer.in_span("child") do |child|
          abort "child: #{child.attributes}" if child.attributes&.key?("pyroscope.profile.id")
          burn_until_sampled
        end
      end
    RUBY
    assert_operator weight(samples) { |sample| sample.labels["span_name"] == "root" }, :>, 0
    assert_empty(samples.select { |sample| sample.labels["span_name"] == "child" })
  end

  def test_scope_all_gives_samples_the_innermost_span_and_each_the_attribute
    code = <<~'RUBY'
      Pyroscope.configure(application_name: "app", server_address: ARGV[0])
      processor = ENV["OTEL_PYROSCOPE_ROOT_SPAN_ONLY"] ? Pyroscope::Otel::SpanProcessor.new : Pyroscope::Otel::SpanProcessor.new(scope: :all)
      tracer = tracer(processor)
      tracer.in_span("root") do
        tracer.in_span("child") do |child|
          abort "child: #{child.attributes}" unless child.attributes["pyroscope.profile.id"] == child.context.hex_span_id
          burn_until_sampled
        end
      end
    RUBY
    [{}, { "OTEL_PYROSCOPE_ROOT_SPAN_ONLY" => "false" }].each do |environment|
      samples = samples_of(code, environment: environment)
      assert_operator weight(samples) { |sample| sample.labels["span_name"] == "child" }, :>, 0
    end
  end

  def test_the_labels_are_the_spans_ids
    ids = nil
    samples = Dir.mktmpdir do |folder|
      ids = assert_ruby(<<~'RUBY', "file://#{folder}").split
        Pyroscope.configure(application_name: "app", server_address: ARGV[0], trace_id: true)
        tracer.in_span("span") { |span| burn_until_sampled && puts(span.context.hex_span_id, span.context.hex_trace_id) }
      RUBY
      Profile.of_folder(folder)
    end
    assert_includes(samples.map { |sample| sample.labels.values_at("span_id", "trace_id") }, ids)
  end

  def test_root_span_only_and_scope_are_the_same_switch
    assert_ruby(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: "none")
      processor = Pyroscope::Otel::SpanProcessor.new
      abort unless processor.root_span_only
      processor.root_span_only = false
      tracer = tracer(processor)
      tracer.in_span("root") { tracer.in_span("child") { |child| abort unless child.attributes&.key?("pyroscope.profile.id") } }
      abort if Pyroscope::Otel::SpanProcessor.new(scope: "all").root_span_only
    RUBY
    error = assert_raises(ArgumentError) { Pyroscope::Otel::SpanProcessor.new(scope: :leaf) }
    %w[scope :leaf :root :all].each { |part| assert_includes error.message, part }
  end

  def test_a_flag_that_is_neither_true_nor_false_is_refused_by_name
    %i[time_attributes inherit_fibers].each do |name|
      error = assert_raises(ArgumentError) { Pyroscope::Otel::SpanProcessor.new(name => "no") }
      assert_equal %(#{name}: "no" is not allowed; allowed: true, false), error.message
    end
  end

  def test_without_names_of_spans
    samples = samples_of(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: ARGV[0])
      processor = Pyroscope::Otel::SpanProcessor.new
      processor.add_span_name = false
      tracer(processor).in_span("span") { burn_until_sampled }
    RUBY
    assert_operator weight(samples) { |sample| sample.labels.key?("span_id") }, :>, 0
    assert_empty(samples.select { |sample| sample.labels.key?("span_name") })
  end

  def test_legacy_labels_give_the_name_its_old_label_too
    samples = samples_of(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: ARGV[0], legacy_labels: true)
      tracer.in_span("root") { Pyroscope.tag_wrapper({ span: "a tag", tier: "web" }) { burn_until_sampled } }
    RUBY
    assert_includes samples.map { |sample| sample.labels.values_at("span", "span_name", "tier") }, %w[root root web]
    refute_includes samples.map { |sample| sample.labels["span"] }, "a tag"
  end

  def test_the_address_of_a_profile_as_grafanas_processor_builds_it
    url = assert_ruby(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: "none")
      processor = Pyroscope::Otel::SpanProcessor.new("app.cpu", "http://localhost:4040")
      tracer(processor).in_span("span") { |span| puts span.attributes["pyroscope.profile.url"], span.context.hex_span_id }
      processor.add_url = false
      tracer(processor).in_span("span") { |span| abort if span.attributes.key?("pyroscope.profile.url") }
      tracer.in_span("span") { |span| abort if span.attributes.key?("pyroscope.profile.url") }
    RUBY
    url, id = url.lines(chomp: true).first(2)
    query = URI.decode_www_form(URI(url).query).to_h
    assert_equal "app.cpu{profile_id=\"#{id}\"}", query["query"]
    assert_equal 3600, query["until"].to_i - query["from"].to_i
  end

  def test_the_first_span_starts_the_profiler_from_the_resource
    labels = nil
    said = nil
    Dir.mktmpdir do |folder|
      said = assert_ruby(<<~'RUBY', environment: { "PYROSCOPE_SERVER_ADDRESS" => "file://#{folder}" })
        processor = Pyroscope::Otel::SpanProcessor.new("ignored.cpu")
        tracer = tracer(processor, resource: { "service.name" => "orders", "service.namespace" => "shop" })
        abort "it runs already" if Pyroscope.running?
        tracer.in_span("span") { burn_until_sampled }
        abort "#{Pyroscope.current_config.application_name}" unless Pyroscope.current_config.application_name == "orders"
        processor.force_flush
        processor.shutdown
        abort "it still runs" if Pyroscope.running?
      RUBY
      assert_operator Profile.of_folder(folder).sum(&:weight), :>, 0
      labels = Dir.children(folder)
    end
    assert_empty said
    assert(labels.any? { |name| name.include?("orders") }, labels.inspect)
  end

  def test_the_name_of_the_processor_counts_where_nobody_chose_one
    assert_ruby(<<~'RUBY', environment: { "PYROSCOPE_SERVER_ADDRESS" => "none" })
      tracer(Pyroscope::Otel::SpanProcessor.new("orders.cpu")).in_span("span") { nil }
      abort "#{Pyroscope.current_config.application_name}" unless Pyroscope.current_config.application_name == "orders"
    RUBY
  end

  def test_start_profiling_false_starts_nothing
    [{ "OTEL_PYROSCOPE_START_PROFILING" => "false" }, { "PYROSCOPE_PROFILING_ENABLED" => "false" }].each do |environment|
      assert_ruby(<<~'RUBY', environment: environment)
        tracer.in_span("span") { |span| abort unless span.context.valid? }
        abort if Pyroscope.running?
      RUBY
    end
  end

  def test_a_variable_that_is_no_boolean_is_told_once_and_spans_go_on
    %w[ROOT_SPAN_ONLY ADD_PROFILE_URL START_PROFILING TIME_ATTRIBUTES].each do |name|
      variables = { "OTEL_PYROSCOPE_#{name}" => "perhaps", "PYROSCOPE_SERVER_ADDRESS" => "none", "PYROSCOPE_APPLICATION_NAME" => "app" }
      said = assert_ruby(<<~'RUBY', environment: variables)
        2.times { tracer.in_span("span") { |span| abort unless span.attributes.key?("pyroscope.profile.id") } }
        abort unless Pyroscope.running?
      RUBY
      expected = "OTEL_PYROSCOPE_#{name}: perhaps is not allowed; allowed: true, false, 1, 0, yes, no. It is taken for "
      assert_equal 1, said.scan(expected).size, said
    end
  end

  def test_names_that_differ_are_one_warning
    said = assert_ruby(<<~'RUBY')
      Pyroscope.configure(application_name: "orders", server_address: "none")
      resource = { "service.name" => "checkout", "service.namespace" => "shop" }
      2.times { tracer(resource: resource).in_span("span") { nil } }
    RUBY
    assert_equal 1, said.scan(/profiles are named "orders" but the spans' resource has service.name "checkout"/).size, said
    assert_equal 1, said.scan(/the spans' resource has what profiles lack/).size, said
  end

  def test_a_span_renamed_after_its_start_has_its_last_name
    samples = samples_of(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: ARGV[0])
      tracer.in_span("HTTP GET") do |span|
        burn_until_sampled
        span.name = "GET /orders"
      end
    RUBY
    assert_operator weight(samples) { |sample| sample.labels["span_name"] == "GET /orders" }, :>, 0
  end

  def test_a_span_of_a_processor_whose_profiler_ended_costs_no_error
    assert_ruby(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: "none")
      tracer = tracer()
      Pyroscope.stop
      tracer.in_span("span") { |span| abort unless span.context.valid? }
    RUBY
  end

  def test_the_answers_of_flush_and_shutdown_are_the_sdks
    assert_ruby(<<~'RUBY')
      processor = Pyroscope::Otel::SpanProcessor.new
      success = OpenTelemetry::SDK::Trace::Export::SUCCESS
      abort unless processor.force_flush == success && processor.force_flush(timeout: 1) == success
      abort unless processor.shutdown == success && processor.shutdown(timeout: 1) == success
    RUBY
  end
end
