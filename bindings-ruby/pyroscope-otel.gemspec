# frozen_string_literal: true

require_relative "lib/pyroscope/version"

# The source gem, which compiles the engine where it is installed. `ci/package ruby` puts the engine's crates beside it, and
# makes of the same the gem for a platform, which holds what was compiled.
Gem::Specification.new do |spec|
  spec.name = "pyroscope-otel"
  spec.version = Pyroscope::VERSION
  spec.authors = ["The spanprof developers"]
  spec.summary = "CPU profiles of OpenTelemetry spans"
  spec.description = "A flame graph for every OpenTelemetry span, right in threads, fibers and forked workers. " \
                     "Takes the place of the gems pyroscope and pyroscope-otel by Grafana."
  spec.homepage = "https://github.com/spanprof/spanprof"
  spec.license = "Apache-2.0"
  spec.required_ruby_version = ">= 3.1"
  spec.metadata = {
    "changelog_uri" => "#{spec.homepage}/blob/main/CHANGELOG.md",
    "documentation_uri" => "#{spec.homepage}/tree/main/docs/ruby",
    "source_code_uri" => spec.homepage,
    "rubygems_mfa_required" => "true"
  }
  spec.files = Dir.chdir(__dir__) do
    Dir["lib/**/*.rb", "sig/*.rbs", "ext/**/*.{rb,rs,c,h,toml}", "crates/**/*", ".cargo/config.toml", "Cargo.{toml,lock}",
        "vendor/**/*", "README.md", "LICENSE"].select { |file| File.file?(file) }
  end
  spec.extensions = ["ext/pyroscope_otel/extconf.rb"]

  # Spans, and the private fields of contexts and spans that we read have had these shapes since.
  spec.add_dependency "opentelemetry-api", "~> 1.1"
  spec.add_dependency "opentelemetry-sdk", "~> 1.2"
  # Compiles the engine; the gem for a platform does without.
  spec.add_dependency "rb_sys", "~> 0.9.130"
end
