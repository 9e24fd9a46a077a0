# frozen_string_literal: true

require "json"
require "open3"

# A profile as tests see it. `fault-server --read` decodes it, for tests of all languages.
class Profile
  SERVER = ENV.fetch("FAULT_SERVER", File.expand_path("../../../target/debug/fault-server", __dir__))

  # A stack, leaf first, as [function, file, line]; its values; its labels as a Hash.
  Sample = Struct.new(:frames, :values, :labels) do
    def functions = frames.map(&:first)
    def weight = values.last
    def span_id = labels["span_id"] || labels["profile_id"]
  end

  attr_reader :samples, :period

  # All profiles of a folder that `server_address: "file:///folder"` names, as one list of samples.
  def self.of_folder(folder)
    output, errors, status = Open3.capture3(SERVER, "--read", *Dir[File.join(folder, "**", "*.pb.gz")])
    raise errors unless status.success?

    output.force_encoding(Encoding::UTF_8).each_line("\n").flat_map { |line| new(JSON.parse(line)).samples }
  end

  def initialize(read)
    @period = read["period"]
    frames = read["frames"].map { |frame| frame.first(3) }
    @samples = read["samples"].map { |sample| Sample.new(frames.values_at(*sample["stack"]), sample["values"], sample["labels"]) }
  end
end
