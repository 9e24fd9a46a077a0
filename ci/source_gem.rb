# frozen_string_literal: true

# Lays out the source gem in a folder: the binding, the engine, and the crates that both need on Linux.
#
#   ruby ci/source_gem.rb FOLDER
#
# What no Linux build compiles (crates of other systems, what only tests need) is left out or emptied: with it the gem would
# be twenty times as large.
require "fileutils"
require "json"
require "open3"

ROOT = File.expand_path("..", __dir__)
TARGETS = %w[x86_64 aarch64].flat_map { |machine| %w[gnu musl].map { |libc| "#{machine}-unknown-linux-#{libc}" } }
# Of a crate, what is no source that is compiled.
NOT_SOURCES = %w[tests benches examples doc docs fuzz .github].freeze

def cargo(*arguments, folder)
  output, errors, status = Open3.capture3("cargo", *arguments, chdir: folder)
  abort "cargo #{arguments.first}: #{errors}" unless status.success?
  output
end

# A manifest without what only tests, examples and benchmarks need.
def for_users(manifest)
  sections = manifest.split(/^(?=\[)/)
  sections.reject { |section| section.match?(/\A\[(dev-dependencies|\[?(test|example|bench)\]|target\.'cfg\(loom\))/) }.join
end

def lay_out(gem)
  FileUtils.rm_rf(gem)
  FileUtils.mkdir_p(File.join(gem, "core"))
  FileUtils.cp_r(Dir[File.join(ROOT, "bindings-ruby", "{lib,sig,ext,README.md,LICENSE,pyroscope-otel.gemspec}")], gem)
  FileUtils.rm_rf(Dir[File.join(gem, "lib/pyroscope_otel/[0-9]*")])
  FileUtils.cp_r([File.join(ROOT, "core/src"), File.join(ROOT, "core/build.rs")], File.join(gem, "core"))
  %w[core/Cargo.toml ext/pyroscope_otel/Cargo.toml].each do |file|
    from = File.join(ROOT, file.start_with?("ext") ? "bindings-ruby" : "", file)
    File.write(File.join(gem, file), for_users(File.read(from)))
  end
  workspace = File.read(File.join(ROOT, "Cargo.toml"))
  workspace.sub!(/^members = .*$/, 'members = ["core", "ext/pyroscope_otel"]')
  workspace.sub!(/^default-members = .*$/, 'default-members = ["ext/pyroscope_otel"]')
  File.write(File.join(gem, "Cargo.toml"), workspace)
  FileUtils.cp(File.join(ROOT, "Cargo.lock"), gem)
  FileUtils.mkdir_p(File.join(gem, ".cargo"))
  FileUtils.cp(File.join(ROOT, ".cargo/config.toml"), File.join(gem, ".cargo"))
end

# Names and versions of what is compiled on Linux.
def compiled(gem)
  TARGETS.flat_map do |target|
    tree = cargo("tree", "--offline", "--target", target, "--edges", "normal,build", "--prefix", "none", "--format", "{p}", gem)
    tree.lines.map { |line| line.split.then { |name, version| "#{name}-#{version.delete_prefix("v")}" } }
  end.uniq
end

# Crates of other systems become empty: cargo only wants to see their manifests.
def empty(crate)
  manifest = File.read(File.join(crate, "Cargo.toml"))
  package = JSON.parse(File.read(File.join(crate, ".cargo-checksum.json"))).fetch("package")
  FileUtils.rm_rf(Dir[File.join(crate, "{*,.*}")].reject { |file| [".", ".."].include?(File.basename(file)) })
  manifest = manifest.split(/^(?=\[)/).reject { |section| section.match?(/\A\[(lib|\[?(bin|test|example|bench)\]|build)/) }.join
  File.write(File.join(crate, "Cargo.toml"), manifest.gsub(/^(build|auto\w+) = .*\n/, ""))
  FileUtils.mkdir_p(File.join(crate, "src"))
  File.write(File.join(crate, "src/lib.rs"), "")
  File.write(File.join(crate, ".cargo-checksum.json"), JSON.generate({ files: {}, package: package }))
end

# Leaves out what is not compiled; cargo checks each file that the list has.
def slim(crate)
  list = File.join(crate, ".cargo-checksum.json")
  checksums = JSON.parse(File.read(list))
  checksums["files"].reject! { |file, _sum| NOT_SOURCES.include?(file.split("/").first) && !manifest_needs?(crate, file) }
  kept = checksums["files"].keys
  Dir.glob("**/*", File::FNM_DOTMATCH, base: crate).each do |file|
    path = File.join(crate, file)
    File.delete(path) if File.file?(path) && file != ".cargo-checksum.json" && !kept.include?(file)
  end
  File.write(list, JSON.generate(checksums))
end

# Whether the manifest or a source names the file's folder, as `include_str!` does.
def manifest_needs?(crate, file)
  folder = file.split("/").first
  sources = Dir[File.join(crate, "{build.rs,src/**/*.rs}")]
  sources.any? { |source| File.binread(source).match?(%r{(include(_str|_bytes)?!\(|path = )\s*"[./]*#{Regexp.escape(folder)}/}) }
end

gem = File.expand_path(ARGV.fetch(0))
lay_out(gem)
config = cargo("vendor", "vendor", gem)
File.write(File.join(gem, ".cargo/config.toml"), config, mode: "a")
needed = compiled(gem)
Dir[File.join(gem, "vendor/*")].each do |crate|
  package = File.read(File.join(crate, "Cargo.toml"))
  name = [package[/^name = "(.+)"/, 1], package[/^version = "(.+)"/, 1]].join("-")
  needed.include?(name) ? slim(crate) : empty(crate)
end
FileUtils.chmod_R("a+rX", gem)
