# frozen_string_literal: true

require "zlib"

# Reads pprof: an independent reader of what the profiler writes, a page of protobuf by hand.
class Profile
  # A stack, leaf first, as [function, file, line]; its values; its labels as a Hash.
  Sample = Struct.new(:frames, :values, :labels) do
    def functions = frames.map(&:first)
    def weight = values.last
    def span_id = labels["span_id"] || labels["profile_id"]
  end

  attr_reader :samples, :sample_types, :period

  # All profiles of a folder that `server_address: "file:///folder"` names, as one list of samples.
  def self.of_folder(folder)
    Dir[File.join(folder, "**", "*.pb.gz")].sort.flat_map { |path| new(File.binread(path)).samples }
  end

  # The fields of any message of protobuf: for each number the values that it has.
  def self.fields(bytes)
    allocate.send(:message, bytes).group_by(&:first).transform_values { |fields| fields.map(&:last) }
  end

  def initialize(bytes)
    bytes = Zlib.gunzip(bytes) if bytes.start_with?("\x1F\x8B".b)
    fields = message(bytes).group_by(&:first)
    @texts = fields.fetch(6, []).map { |_, text| text.dup.force_encoding(Encoding::UTF_8) }
    functions = by_id(fields.fetch(5, []))
    @locations = by_id(fields.fetch(4, [])).transform_values { |location| frames_of(location, functions) }
    @sample_types = fields.fetch(1, []).map { |_, type| @texts.fetch(one(message(type), 1)) }
    @period = one(fields.fetch(12, []), 12)
    @samples = fields.fetch(2, []).map { |_, sample| sample_of(message(sample)) }
  end

  private

  def sample_of(fields)
    labels = fields.select { |number, _| number == 3 }.to_h do |_, label|
      label = message(label)
      text = one(label, 2)
      [@texts.fetch(one(label, 1)), text.zero? ? one(label, 3) : @texts.fetch(text)]
    end
    Sample.new(numbers(fields, 1).flat_map { |id| @locations.fetch(id) }, numbers(fields, 2), labels)
  end

  def frames_of(location, functions)
    location.select { |number, _| number == 4 }.map do |_, line|
      line = message(line)
      function = functions.fetch(one(line, 1))
      [@texts.fetch(one(function, 2)), @texts.fetch(one(function, 4)), one(line, 2)]
    end
  end

  def by_id(messages)
    messages.to_h { |_, bytes| message(bytes).then { |fields| [one(fields, 1), fields] } }
  end

  def one(fields, number)
    fields.find { |known, _| known == number }&.last || 0
  end

  # A repeated number, packed or not.
  def numbers(fields, number)
    fields.select { |known, _| known == number }.flat_map do |_, value|
      next value unless value.is_a?(String)

      list = []
      at = 0
      while at < value.bytesize
        read, at = varint(value, at)
        list << read
      end
      list
    end
  end

  # The fields of a message: [[number, Integer or String], ...].
  def message(bytes)
    fields = []
    at = 0
    while at < bytes.bytesize
      tag, at = varint(bytes, at)
      case tag & 7
      when 0 then value, at = varint(bytes, at)
      when 2
        length, at = varint(bytes, at)
        value = bytes.byteslice(at, length)
        at += length
      else raise "wire type #{tag & 7}"
      end
      fields << [tag >> 3, value]
    end
    fields
  end

  def varint(bytes, at)
    value = shift = 0
    loop do
      byte = bytes.getbyte(at)
      at += 1
      value |= (byte & 0x7f) << shift
      return [value, at] if byte < 0x80

      shift += 7
    end
  end
end
