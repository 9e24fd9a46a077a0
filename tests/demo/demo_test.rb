# frozen_string_literal: true

# What `ci/demo ruby --check` asserts of the running viewer, after the services of examples/ruby/shop were under load.
# SPANPROF_URL is the viewer, SPANPROF_DEMO the folder with the services' logs.
require "etc"
require "json"
require "minitest/autorun"
require "net/http"

class DemoTest < Minitest::Test
  # The method with the most own CPU in the spans of a name. The services are written so.
  HOT = {
    ["checkout", "GET /cart/:user"] => "read_item",
    ["checkout", "check coupon"] => "coupon?",
    ["checkout", "GET /export"] => "generate",
    ["checkout", "rank offers"] => "rank",
    ["search", "GET /suggest"] => "edit_distance",
    ["search", "score shard"] => "score",
    ["search", "GET /documents"] => "tokenize"
  }.freeze

  # Spans that compute from start to end, and the least CPU for each second of their wall time.
  CPU_BOUND = { ["checkout", "check coupon"] => 0.4, ["checkout", "GET /export"] => 0.4 }.freeze

  # Nanoseconds of CPU a sample, at the profiler's 100 Hz.
  PERIOD = 10_000_000
  SERVICES = %w[checkout search].freeze

  def get(path, **parameters)
    uri = URI("#{ENV.fetch("SPANPROF_URL")}#{path}")
    uri.query = URI.encode_www_form(parameters)
    answer = Net::HTTP.get_response(uri)
    assert_equal "200", answer.code, answer.body
    JSON.parse(answer.body)
  end

  def spans
    @spans ||= SERVICES.flat_map do |service|
      get("/api/spans", service: service)["spans"].map { |span| [[service, span["name"]], span] }
    end.to_h
  end

  # A frame's method without the class or module that it is in.
  def method_of(function)
    function[/[^.#:]+\z/]
  end

  HOT.each do |(service, name), hot|
    define_method("test_the_hottest_method_of_#{service}_#{name.tr(" /:", "___")}_is_the_one_that_was_made_hot") do
      span = spans.fetch([service, name])
      assert_operator span["samples"], :>=, 10
      # A collection is of whoever made it due: now and then most of it is of one name.
      hottest = get("/api/top", service: service, name: name)["functions"].find { |row| row["function"] != "(garbage collection)" }
      assert_equal hot, method_of(hottest["function"]), hottest.inspect
    end
  end

  CPU_BOUND.each do |(service, name), least|
    define_method("test_#{name.tr(" /:", "___")}_has_cpu_for_most_of_its_time") do
      load = File.read("/proc/loadavg").to_f
      skip "other programs take the time of the spans: load #{load}" if load > Etc.nprocessors + 2
      span = spans.fetch([service, name])
      assert_operator span["cpu_ns"].fdiv(span["wall_total_ns"]), :>, least
    end
  end

  def test_no_span_burns_more_than_its_time
    spans.each do |key, span|
      next unless span["cpu_ns"]

      # Five standard errors of a sum of samples.
      error = 5 * PERIOD * Math.sqrt([1, span["samples"]].max)
      assert_operator span["cpu_ns"], :<=, span["wall_total_ns"] + error, key
    end
  end

  def test_nothing_hot_runs_outside_of_spans
    SERVICES.each do |service|
      top = get("/api/top", service: service, outside: "1")
      inside = HOT.filter_map { |(owner, _name), hot| hot if owner == service } - ["generate"]
      assert_empty(top["functions"].map { |row| method_of(row["function"]) } & inside)
    end
  end

  def test_spans_and_what_is_outside_of_them_add_up_to_the_service
    services = get("/api/services")["services"].to_h { |row| [row["service"], row] }
    SERVICES.each do |service|
      answer = get("/api/spans", service: service)
      parts = answer["spans"].sum { |span| span["cpu_ns"] || 0 } + answer["outside"]["cpu_ns"]
      assert_equal services.fetch(service)["cpu_ns"], parts
    end
  end

  def test_both_forked_workers_sent_profiles_and_lost_nothing
    log = File.read(File.join(ENV.fetch("SPANPROF_DEMO"), "checkout.log"))
    workers = log.scan(/profiler of worker (\d+): (\{.*\})/).to_h
    assert_equal 2, workers.size
    workers.each_value do |stats|
      stats = JSON.parse(stats)
      assert_operator stats["taken"]["samples"], :>, 0
      assert_equal stats["taken"], stats["uploaded"]
    end
  end

  def test_a_trace_holds_both_services_and_fibers_that_took_turns
    trace = get("/api/traces", service: "checkout", name: "GET /offer/:user")["traces"].first
    spans = get("/api/trace/#{trace["trace"]}")["spans"]
    request = spans.find { |span| span["service"] == "search" && span["name"] == "GET /similar/:user" }
    refute_nil request, spans.map { |span| span["name"] }.inspect
    shards = spans.select { |span| span["name"] == "score shard" }
    assert_equal 4, shards.size
    shards.combination(2) do |one, other|
      assert_operator one["start_unix_ns"], :<, other["start_unix_ns"] + other["wall_ns"]
      assert_operator other["start_unix_ns"], :<, one["start_unix_ns"] + one["wall_ns"]
    end
  end
end
