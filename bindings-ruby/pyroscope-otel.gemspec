# frozen_string_literal: true

require_relative "lib/pyroscope/version"

# `ci/package ruby` makes two gems of this, each in a folder where it has laid out the files: the source gem, which compiles
# the engine where it is installed, and the gem for a platform, where a folder for each version of Ruby holds what was compiled.
compiled = Dir[File.join(__dir__, "lib/pyroscope_otel/[0-9]*")].map { |folder| Gem::Version.new(File.basename(folder)) }.sort
source = File.exist?(File.join(__dir__, "vendor")) || compiled.empty?

Gem::Specification.new do |spec|
  spec.name = "pyroscope-otel"
  spec.version = Pyroscope::VERSION
  spec.authors = ["The spanprof developers"]
  spec.summary = "CPU profiles of OpenTelemetry spans"
  spec.description = "A flame graph for every OpenTelemetry span, right in threads, fibers and forked workers. " \
                     "Takes the place of the gems pyroscope and pyroscope-otel by Grafana."
  spec.homepage = "https://github.com/spanprof/spanprof"
  spec.license = "Apache-2.0"
  spec.required_ruby_version = source ? ">= 3.1" : [">= #{compiled.first}", "< 3.#{compiled.last.segments.last + 1}.dev"]
  spec.metadata = {
    "changelog_uri" => "#{spec.homepage}/blob/main/CHANGELOG.md",
    "documentation_uri" => "#{spec.homepage}/tree/main/docs/ruby",
    "source_code_uri" => spec.homepage,
    "rubygems_mfa_required" => "true"
  }
  spec.files = Dir.chdir(__dir__) do
    files = Dir.glob(%w[lib/**/*.{rb,so} sig/*.rbs README.md LICENSE])
    files += Dir.glob(%w[Cargo.{toml,lock} .cargo/config.toml core/**/* ext/**/* vendor/**/*], File::FNM_DOTMATCH) if source
    files.select { |file| File.file?(file) }
  end
  if source
    spec.extensions = ["ext/pyroscope_otel/extconf.rb"]
    spec.add_dependency "rb_sys", "~> 0.9.130" # calls cargo
  else
    spec.platform = Gem::Platform.local
  end

  # Spans, and the private fields of contexts and spans that we read have had these shapes since.
  spec.add_dependency "opentelemetry-api", "~> 1.1"
  spec.add_dependency "opentelemetry-sdk", "~> 1.2"
end
