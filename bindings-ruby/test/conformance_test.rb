# frozen_string_literal: true

require "json"
require_relative "helper"
require_relative "../../tests/support/ruby/receiver"
require "pyroscope/otel"

# The vectors that all languages share (tests/conformance), for this one.
class ConformanceTest < Minitest::Test
  FOLDER = File.expand_path("../../tests/conformance", __dir__)
  SETTINGS, TAGS, SPANS, SCOPES, STATS = %w[settings tags spans scopes stats].map { |file| JSON.parse(File.read("#{FOLDER}/#{file}.json")) }
  # Numbers that only Ruby has.
  OWN_NUMBERS = %i[stacks_unreadable drain_ns].freeze

  def setup
    @environment = ENV.to_h
  end

  def teardown
    ENV.replace(@environment)
    Pyroscope.stop
  end

  # A text, as it is or as a list of [text, times].
  def text(value)
    value.is_a?(String) ? value : value.map { |part, times| part * times }.join
  end

  def burn(seconds)
    clock = Process::CLOCK_THREAD_CPUTIME_ID
    until_then = Process.clock_gettime(clock) + seconds
    nil while Process.clock_gettime(clock) < until_then
  end

  # Burns with a tag by which its samples are found, until there are some: where the profiler's thread gets no processor for a while,
  # the ring of this one is full meanwhile, and what comes is counted as dropped.
  def node(name)
    Pyroscope.tag_wrapper({ node: name }) do
      # So that what is counted from here on was sampled from here on.
      assert Pyroscope.flush
      before = kept
      burn(0.05)
      burn(0.01) until kept > before
    end
  end

  def kept
    numbers = Pyroscope.stats
    numbers[:taken][:samples] - numbers[:dropped_ring][:samples]
  end

  # What each sample of a node carries beside; all carry the same.
  def labels_of(samples, name)
    found = samples.select { |sample| sample.labels["node"] == name }.map { |sample| sample.labels.except("node") }.uniq
    assert_equal 1, found.size, "#{name}: #{found}, of #{Pyroscope.stats}"
    found.first
  end

  # The samples of the block: by wall time, a thousand a second, so that none of its parts goes without.
  def samples
    Dir.mktmpdir do |folder|
      settings = { application_name: "app", server_address: "file://#{folder}", sample_rate: 1000, trace_id: true }
      assert Pyroscope::Native.start({ **settings, wall_clock: true })
      yield
      Pyroscope.stop
      Profile.of_folder(folder)
    end
  end

  def configure(test_case, place = "127.0.0.1:9")
    fill = ->(value) { value.is_a?(String) ? value.gsub("PLACE", place) : value }
    ENV.update({ **SETTINGS["defaults"], **test_case.fetch("environment", {}) }.transform_values(&fill))
    Pyroscope.configure(**test_case.fetch("settings", {}).to_h { |name, value| [name.to_sym, fill.call(value)] })
  end

  # The first upload with these settings.
  def send_with(test_case)
    Receiver.listen do |receiver|
      assert configure(test_case, receiver.place)
      burn(0.02)
      assert Pyroscope.stop
      return receiver.pushes.fetch(0)
    end
  end

  SETTINGS["cases"].each do |test_case|
    define_method("test_settings_#{test_case["name"].gsub(/\W/, "_")}") do
      if test_case.key?("error")
        error = assert_raises(ArgumentError) { configure(test_case) }
        assert_equal test_case["error"], error.message
      elsif test_case.key?("starts")
        assert_equal test_case["starts"], configure({ **test_case, "settings" => { "server_address" => "none" } })
      else
        assert_sent(test_case["sent"], send_with(test_case))
      end
    end
  end

  def assert_sent(expected, push)
    assert_equal expected["path"], push.path if expected.key?("path")
    assert_equal expected["period"], push.profile.period if expected.key?("period")
    { push.headers => expected["headers"], push.labels => expected["labels"] }.each do |found, wanted|
      wanted&.each { |name, value| value.nil? ? assert_nil(found[name]) : assert_equal(value, found[name]) }
    end
  end

  def with_tags(tags)
    Pyroscope.configure(application_name: "app", server_address: "none", tags: tags)
  end

  def test_names_of_tags
    TAGS["names"].each { |name| assert with_tags({ name => "x" }) }
    most = (1..TAGS["most"]).to_h { |number| ["t#{number}", ""] }
    assert with_tags(most)
    error = assert_raises(ArgumentError) { with_tags({ **most, "more" => "" }) }
    assert_equal TAGS["too_many"], error.message
    TAGS["refused_names"].each do |name, why|
      error = assert_raises(ArgumentError) { with_tags({ name => "x" }) }
      assert_equal "tags: #{why}", error.message
    end
  end

  # In a process of its own, as each is told once a process.
  def test_names_of_tags_that_are_left_out_and_told_once
    said = assert_ruby(<<~'RUBY', JSON.generate(TAGS["refused_names"].keys))
      require "json"
      Pyroscope.configure(application_name: "app", server_address: "none")
      (JSON.parse(ARGV[0]) * 2).each { |name| Pyroscope.tag_wrapper({ name => "x" }) { nil } }
      Pyroscope.stats
    RUBY
    expected = TAGS["refused_names"].values.map { |why| "WARN pyroscope: tag_wrapper: #{why}; the tag is left out" }
    assert_equal expected, said.lines(chomp: true)
  end

  def test_values_of_tags
    TAGS["values"].each do |test_case|
      push = send_with({ "settings" => { "tags" => { "cut" => text(test_case["value"]) } } })
      assert_equal text(test_case["label"]), push.labels["cut"]
    end
  end

  # Enters tags one inside the other, then runs the block.
  def within(tags, &block)
    return yield if tags.empty?

    Pyroscope.tag_wrapper(tags.first.transform_values { |value| text(value) }) { within(tags.drop(1), &block) }
  end

  def test_tags_of_blocks
    found = samples { TAGS["blocks"].each_with_index { |test_case, number| within(test_case["enter"]) { node(number.to_s) } } }
    TAGS["blocks"].each_with_index do |test_case, number|
      assert_equal test_case["labels"].transform_values { |value| text(value) }, labels_of(found, number.to_s)
    end
  end

  # Gives the ids that are set.
  class Ids
    attr_accessor :trace_id, :span_id

    def generate_trace_id = [trace_id].pack("H*")
    def generate_span_id = [span_id].pack("H*")
  end

  def tracer(scope, **options)
    provider = OpenTelemetry::SDK::Trace::TracerProvider.new(**options)
    provider.add_span_processor(Pyroscope::Otel::SpanProcessor.new(scope: scope))
    provider.tracer("conformance")
  end

  def test_names_and_ids_of_spans
    ids = Ids.new
    found = samples do
      tracer = tracer(:root, id_generator: ids)
      SPANS["names"].each.with_index(1000) do |test_case, number|
        ids.trace_id = number.to_s(16).rjust(32, "0")
        ids.span_id = number.to_s(16).rjust(16, "0")
        tracer.in_span(text(test_case["name"])) { node("name #{number}") }
      end
      SPANS["ids"].each do |test_case|
        ids.trace_id, ids.span_id = test_case.values_at("trace_id", "span_id")
        tracer.in_span("ids") do |span|
          node(test_case["span_id"])
          assert_equal test_case["span_id"], span.attributes["pyroscope.profile.id"]
        end
      end
    end
    SPANS["names"].each.with_index(1000) do |test_case, number|
      assert_equal text(test_case["label"]), labels_of(found, "name #{number}")["span_name"]
    end
    SPANS["ids"].each { |test_case| assert_equal({ **test_case, "span_name" => "ids" }, labels_of(found, test_case["span_id"])) }
  end

  # Leaves out the spans that the vectors say nobody exports.
  AllButUnseen = Struct.new(:unseen) do
    def should_sample?(trace_id:, parent_context:, links:, name:, kind:, attributes:)
      decision = OpenTelemetry::SDK::Trace::Samplers.const_get(unseen.include?(name) ? :ALWAYS_OFF : :ALWAYS_ON)
      decision.should_sample?(trace_id: trace_id, parent_context: parent_context, links: links, name: name, kind: kind, attributes: attributes)
    end
  end

  def all_spans(spans)
    spans.flat_map { |span| [span, *all_spans(span.fetch("children", []))] }
  end

  %w[root all].each do |scope|
    define_method("test_scope_#{scope}") do
      spans = all_spans(SCOPES["spans"])
      unseen = spans.select { |span| span["sampled"] == false }.map { |span| span["name"] }
      remote = OpenTelemetry::Trace::SpanContext.new(trace_id: "t" * 16, span_id: "s" * 8, remote: true)
      remote = OpenTelemetry::Trace.non_recording_span(remote)
      @parents = { "none" => OpenTelemetry::Context.empty,
                   "remote" => OpenTelemetry::Trace.context_with_span(remote, parent_context: OpenTelemetry::Context.empty) }
      @started = {}
      found = samples do
        @tracer = tracer(scope, sampler: AllButUnseen.new(unseen))
        SCOPES["spans"].each { |span| run_span(span) }
      end
      spans.each { |span| assert_scope(span, span[scope], labels_of(found, span["name"])) }
    end
  end

  def run_span(span)
    name = span["name"]
    @started[name] = @tracer.start_span(name, with_parent: @parents[span["parent"]])
    OpenTelemetry::Trace.with_span(@started[name]) do
      node(name)
      span.fetch("children", []).each do |child|
        run_span(child)
        node(name)
      end
    end
    @started[name].finish
  end

  def assert_scope(span, carried, labels)
    expected = {}
    if carried
      context = @started.fetch(carried).context
      expected = { "span_id" => context.hex_span_id, "trace_id" => context.hex_trace_id, "span_name" => carried }
    end
    assert_equal expected, labels, span["name"]
    own = @started.fetch(span["name"])
    # A span that nobody exports has no attributes.
    attributes = own.respond_to?(:attributes) ? own.attributes.to_h : {}
    wanted = carried == span["name"] ? expected["span_id"] : nil
    wanted.nil? ? assert_nil(attributes["pyroscope.profile.id"]) : assert_equal(wanted, attributes["pyroscope.profile.id"])
  end

  def assert_adds_up(stats)
    STATS["sums"].each do |name, parts|
      units = STATS["tallies"].include?(name) ? %i[samples weight] : [nil]
      units.each do |unit|
        whole, *rest = [name, *parts].map { |key| unit ? stats.fetch(key.to_sym).fetch(unit) : stats.fetch(key.to_sym) }
        assert_equal whole, rest.sum, name
      end
    end
  end

  def test_stats
    samples do
      burn(0.02)
      stats = Pyroscope.stats
      assert_equal (STATS["tallies"] + STATS["numbers"] + STATS["texts"]).map(&:to_sym), stats.keys - OWN_NUMBERS
      assert_adds_up(stats)
    end
    stats = Pyroscope.stats
    assert_adds_up(stats)
    assert_operator stats[:taken][:samples], :>, 0
    STATS["nothing_after_a_stop"].each { |name| assert_equal({ samples: 0, weight: 0 }, stats[name.to_sym]) }
  end
end
