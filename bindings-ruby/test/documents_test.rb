# frozen_string_literal: true

require_relative "helper"
require "pyroscope/otel"

# The documents say what the program does: names, defaults, messages, frames, and the Ruby in them.
class DocumentsTest < Minitest::Test
  ROOT = File.expand_path("../..", __dir__)
  DOCS = File.join(ROOT, "docs")
  SOURCES = Dir[File.join(ROOT, "bindings-ruby/{lib/**/*.rb,ext/**/*.rs}")].map { |file| File.read(file) }.join("\n")
                                                                            .gsub(/"\s*\\?\n\s*"/, "")

  # The cells of the tables below a heading, of lines that begin with a name.
  def rows(page, heading)
    section = File.read(File.join(DOCS, page)).split("## #{heading}\n").fetch(1).split("\n## ").first
    section.lines.grep(/^\| `/).map { |line| line.split(/(?<!\\)\|/)[1..-2].map(&:strip) }
  end

  def test_the_reference_has_every_option_with_its_default
    written = rows("ruby/configuration.md", "Options of `configure`").to_h { |cells| [cells[0].delete("`"), cells[2].delete("`")] }
    assert_equal(Pyroscope::Config::OPTIONS.to_h { |name, option| [name.to_s, option.default.inspect] }, written)
  end

  def test_the_reference_has_every_variable_that_is_read
    core = File.read(File.join(ROOT, "core/src/config/environment.rs")).split("#[cfg(test)]").first
    read = (core + SOURCES).scan(/"((?:OTEL|PYROSCOPE)_[A-Z_]+)"/).flatten.uniq
    written = rows("ruby/configuration.md", "Environment").map { |cells| cells[0].delete("`") }
    assert_equal read.sort - others, written.sort
  end

  # Variables of the engine that only other languages act on; the page says so.
  def others
    Pyroscope::Environment::NOT_YET
  end

  def test_the_reference_has_every_key_of_stats
    written = rows("ruby/troubleshooting.md", "stats").flat_map { |cells| cells[0].scan(/`(\w+)`/).flatten }
    assert_equal Pyroscope.stats.keys.map(&:to_s).sort, (written + ["last_error"]).sort
  end

  def test_the_messages_are_those_of_the_program
    messages = rows("messages.md", "From Ruby").map { |cells| cells[0].delete("`") }
    # What all languages say stands in the engine.
    shared = %w[host config/tag_name].map { |file| File.read(File.join(ROOT, "core/src/#{file}.rs")) }
    sources = [SOURCES, *shared].join("\n")
    messages.each { |message| message.split(/ ?… ?/).each { |part| assert_includes sources, part } }
    longest = messages.map { |message| message.split(/ ?… ?/).max_by(&:size) }
    said = sources.scan(/(?:(?:warn|inform)_once\(\s*\S+\s|report\(\s*Level::\w+,\s*(?:format!\()?)\s*"((?:[^"\\]|\\.)+)"/m).flatten
    refute_empty said
    said.each { |text| assert longest.any? { |part| text.include?(part) }, text }
  end

  def test_the_frames_without_a_method_are_those_of_the_program
    written = rows("ruby/limits.md", "Frames in parentheses").flat_map { |cells| cells[0].scan(/`(.+?)`/).flatten }
    engine = Dir[File.join(ROOT, "core/src/**/*.rs")].map { |file| File.read(file) }.join
    written.each { |name| assert_includes SOURCES + engine, "\"#{name}\"" }
    assert_empty SOURCES.scan(/named\("(\(.+?\))"\)/).flatten - written
  end

  def test_the_ruby_in_them_runs_and_says_nothing
    pages = Dir[File.join(ROOT, "{README.md,bindings-ruby/README.md,docs/**/*.md}")]
    programs = pages.flat_map { |page| File.read(page).scan(/^```ruby\n(.*?)^```/m).flatten }
    assert_operator programs.size, :>=, 2
    programs.each do |program|
      environment = { "OTEL_SERVICE_NAME" => "checkout", "PYROSCOPE_SERVER_ADDRESS" => "none", "OTEL_TRACES_EXPORTER" => "none" }
      program = program.sub('"http://localhost:4040"', '"none"')
      output, status = Open3.capture2e(environment, RbConfig.ruby, "-W", "-I", LIB, "-I", File.join(__dir__, "absent"), "-e", program)
      assert status.success?, output
      assert_empty output.lines.grep(/-e:|pyroscope/)
    end
  end
end
