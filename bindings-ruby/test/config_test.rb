# frozen_string_literal: true

require_relative "helper"

class ConfigTest < Minitest::Test
  # Options, and what the message must contain: option, value, what is allowed.
  REFUSED = {
    "rate -1" => [{ sample_rate: -1 }, ["sample_rate", "-1", "1 to 1000"]],
    "rate 0" => [{ sample_rate: 0 }, ["sample_rate", "0", "1 to 1000"]],
    "rate 100000" => [{ sample_rate: 100_000 }, ["sample_rate", "100000", "1 to 1000"]],
    "rate beyond 64 bits" => [{ sample_rate: 2**70 }, ["sample_rate", (2**70).to_s, "1 to 1000"]],
    "rate as text" => [{ sample_rate: "100" }, ["sample_rate", '"100"', "1 to 1000"]],
    "interval 0" => [{ upload_interval: 0 }, %w[upload_interval 0 1]],
    "interval -1" => [{ upload_interval: -1 }, ["upload_interval", "-1", "1 s to 10 min"]],
    "interval NaN" => [{ upload_interval: Float::NAN }, %w[upload_interval NaN 1]],
    "name as a symbol" => [{ application_name: :shop }, ["application_name", ":shop", "text"]],
    "no name" => [{ application_name: "" }, ["application_name"]],
    "scheme" => [{ server_address: "ftp://x" }, ["server_address", "ftp://x", "http"]],
    "port" => [{ server_address: "localhost:99999" }, ["server_address", "localhost:99999"]],
    "level" => [{ log_level: "loud" }, %w[log_level loud error]],
    "tags as text" => [{ tags: "a=b" }, ["tags", "a=b", "Hash"]],
    "space in a tag" => [{ tags: { "a key" => "x" } }, ["tags", "a key", "[A-Za-z_]"]],
    "reserved tag" => [{ tags: { span_id: "x" } }, %w[tags span_id reserved]],
    "tag span beside legacy_labels" => [{ tags: { span: "x" }, legacy_labels: true }, ["tags", "span", "legacy_labels"]],
    "21 tags" => [{ tags: (1..21).to_h { |number| ["t#{number}", "x"] } }, ["tags", "21", "at most 20"]],
    "flag as text" => [{ report_pid: "yes" }, ["report_pid", '"yes"', "true, false"]],
    "trace_id" => [{ trace_id: "maybe" }, %w[trace_id maybe auto]]
  }.freeze

  def teardown
    Pyroscope.stop
  end

  def threads
    Dir.children("/proc/self/task").sort
  end

  REFUSED.each do |name, (options, parts)|
    define_method("test_#{name.tr(" -", "__")}_is_refused_before_anything_starts") do
      before = threads
      error = assert_raises(ArgumentError) do
        Pyroscope.configure(application_name: "app", server_address: "none", **options)
      end
      parts.each { |part| assert_includes error.message, part }
      assert_empty threads - before
      refute_predicate Pyroscope, :running?
    end
  end

  def test_a_refused_option_leaves_the_running_profiler_alone
    assert Pyroscope.configure(application_name: "app", server_address: "none")
    before = threads
    assert_raises(ArgumentError) { Pyroscope.configure(application_name: "app", server_address: "ftp://x") }
    assert_empty threads - before
    assert_predicate Pyroscope, :running?
    assert_equal "none", Pyroscope.current_config.server_address
  end

  def test_an_unknown_option_is_a_no_method_error_with_a_suggestion
    [-> { Pyroscope.configure { |config| config.aplication_name = "app" } },
     -> { Pyroscope.configure(aplication_name: "app") }].each do |configure|
      error = assert_raises(NoMethodError, &configure)
      assert_includes error.detailed_message, "application_name" if error.respond_to?(:detailed_message)
      assert_includes DidYouMean::MethodNameChecker.new(error).corrections, :application_name=
    end
  end

  def test_a_secret_is_in_no_message
    config = Pyroscope::Config.new
    config.basic_auth_password = "hunter2"
    config.http_headers = { "Authorization" => "hunter2" }
    config.auth_token = "hunter2"
    refute_includes config.inspect, "hunter2"
    %i[basic_auth_password server_address basic_auth_username tenant_id].each do |name|
      config = Pyroscope::Config.new
      config.public_send(:"#{name}=", %w[hunter2])
      error = assert_raises(ArgumentError) { config.settings }
      assert_includes error.message, name.to_s
      refute_includes error.message, "hunter2"
    end
  end

  def test_block_and_keywords_and_both
    given = nil
    assert(Pyroscope.configure(application_name: "keyword", server_address: "none") do |config|
      given = config.application_name
      config.application_name = "block"
    end)
    assert_equal "keyword", given
    assert_equal "block", Pyroscope.current_config.application_name
  end

  def test_what_is_not_set_is_left_to_the_environment
    config = Pyroscope::Config.new
    config.application_name = "app"
    config.server_address = nil
    assert_equal "http://localhost:4040", config.server_address
    assert_equal({ application_name: "app" }, config.settings)
  end

  def test_names_of_old_versions_are_taken
    config = Pyroscope::Config.new
    config.app_name = "old"
    config.auth_token = "token"
    config.detect_subprocesses = true
    config.compression = "none"
    config.report_encoding = "tree"
    config.http_headers = { "X-Other" => "1" }
    headers = { "Authorization" => "Bearer token", "X-Other" => "1" }
    assert_equal({ application_name: "old", http_headers: headers }, config.settings)
  end

  def test_texts_that_are_not_valid_utf_8_are_mended
    config = Pyroscope::Config.new
    config.application_name = "caf\xE9"
    config.tenant_id = "caf\u00e9".encode("ISO-8859-1")
    config.tags = { "region" => "caf\u00e9".b }
    assert_equal({ application_name: "caf\uFFFD", tenant_id: "caf\u00e9", tags: { "region" => "caf\u00e9" } }, config.settings)
  end
end
