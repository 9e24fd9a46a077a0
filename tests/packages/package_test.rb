# frozen_string_literal: true

# The gems as a user gets them: each installs into an empty GEM_HOME and profiles a span there.
#
#   PACKAGES=dist TARGET=target ruby tests/packages/package_test.rb        after `ci/package ruby`; ci/test does it
require "minitest/autorun"
require "open3"
require "rbconfig"
require "rubygems/package"
require "tmpdir"

require_relative "../support/ruby/profile"

class PackageTest < Minitest::Test
  PACKAGES = File.expand_path(ENV.fetch("PACKAGES"))
  TARGET = File.expand_path(ENV.fetch("TARGET"))
  # Where the gems come from that ours needs: the machine's default, or the archive beside the project.
  SOURCE = ENV.key?("BUNDLE_MIRROR__ALL") ? ["--clear-sources", "--source", "#{ENV.fetch("BUNDLE_MIRROR__ALL")}/"] : []
  MIB = 1024 * 1024

  PROGRAM = <<~'RUBY'
    require "pyroscope-otel"

    def spin_in_the_span
      clock = Process::CLOCK_THREAD_CPUTIME_ID
      until_then = Process.clock_gettime(clock) + 0.5
      nil while Process.clock_gettime(clock) < until_then
    end

    Pyroscope.configure(application_name: "packaged", server_address: "file://#{ARGV[0]}") || abort("it does not run")
    provider = OpenTelemetry::SDK::Trace::TracerProvider.new
    provider.add_span_processor(Pyroscope::Otel::SpanProcessor.new)
    provider.tracer("test").in_span("GET /cart") { spin_in_the_span }
    puts $LOADED_FEATURES.grep(/pyroscope_otel\.so\z/)
  RUBY

  def the_package(source:)
    gems = Dir[File.join(PACKAGES, "pyroscope-otel-*.gem")].map { |file| Gem::Package.new(file) }
    found = gems.select { |gem| (gem.spec.platform == Gem::Platform::RUBY) == source }
    assert_equal 1, found.size, gems.map { |gem| gem.spec.full_name }.inspect
    found.first
  end

  # Runs a command with none of our settings, nor Bundler's; its output, once it is known to have ended well.
  def run_alone(*command, **environment)
    kept = ENV.to_h.reject { |name, _value| name.start_with?("PYROSCOPE_", "OTEL_", "BUNDLE", "RUBY", "GEM_") }
    output, status = Open3.capture2e(kept.merge(environment.transform_keys(&:to_s)), *command, unsetenv_others: true)
    assert status.success?, output
    output
  end

  def assert_installs_and_profiles(gem, **environment)
    Dir.mktmpdir do |home|
      homes = { GEM_HOME: home, GEM_PATH: home }
      run_alone(RbConfig.ruby, "-S", "gem", "install", "--no-document", *SOURCE, gem.gem.path, **homes, **environment)
      folder = File.join(home, "profiles")
      loaded = run_alone(RbConfig.ruby, "-e", PROGRAM, folder, **homes)
      assert loaded.start_with?(home), loaded
      samples = Profile.of_folder(folder).select { |sample| sample.labels["span_name"] == "GET /cart" }
      hot = samples.select { |sample| sample.functions.any? { |name| name.end_with?("#spin_in_the_span") } }
      assert_operator hot.sum(&:weight), :>, 300_000_000
      yield home if block_given?
    end
  end

  def test_the_gem_for_the_platform_profiles_a_span_in_an_empty_gem_home
    gem = the_package(source: false)
    assert gem.spec.required_ruby_version.satisfied_by?(Gem.ruby_version)
    assert_empty gem.spec.extensions
    assert_operator File.size(gem.gem.path), :<, 12 * MIB
    assert_installs_and_profiles(gem)
  end

  def test_the_source_gem_compiles_without_a_network_and_profiles_a_span
    skip "compiled on one Ruby, and not in CI: TRY_SOURCES is not set" unless ENV["TRY_SOURCES"]
    gem = the_package(source: true)
    assert_operator File.size(gem.gem.path), :<, 12 * MIB
    # Unoptimised, in a target directory that stays: what is tested is that the sources are complete.
    settings = { CARGO_NET_OFFLINE: "true", RB_SYS_CARGO_TARGET_DIR: File.join(TARGET, "source-gem"),
                 CARGO_PROFILE_RELEASE_OPT_LEVEL: "0", CARGO_PROFILE_RELEASE_LTO: "off", CARGO_PROFILE_RELEASE_DEBUG: "0",
                 CARGO_PROFILE_RELEASE_CODEGEN_UNITS: "16" }
    assert_installs_and_profiles(gem, **settings)
  end
end
