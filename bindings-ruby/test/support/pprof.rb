# frozen_string_literal: true

require "zlib"

# Reads pprof profiles with nothing but the standard library. It shares no code with the profiler: what that writes is
# judged by a second reading of the format (https://github.com/google/pprof/blob/main/proto/profile.proto).
module Pprof
  # A sample: names of its functions from the leaf on, CPU nanoseconds, labels.
  Sample = Struct.new(:stack, :files, :weight, :labels)

  # All samples of the profiles that `server_address = "file:///folder"` left.
  def self.read_folder(folder)
    Dir[File.join(folder, "*.pb.gz")].sort.flat_map { |file| read(Zlib.gunzip(File.binread(file))) }
  end

  # The samples of one profile.
  def self.read(bytes)
    fields = message(bytes)
    strings = fields[6].map { |text| text.dup.force_encoding(Encoding::UTF_8) }
    raise "a string of the profile is no UTF-8" unless strings.all?(&:valid_encoding?)

    functions = fields[5].to_h do |function|
      function = message(function)
      [function[1].first, [strings.fetch(function[2].first || 0), strings.fetch(function[4].first || 0)]]
    end
    locations = fields[4].to_h do |location|
      location = message(location)
      [location[1].first, location[4].map { |line| functions.fetch(message(line)[1].first) }]
    end
    fields[2].map { |sample| sample(message(sample), strings, locations) }
  end

  def self.sample(fields, strings, locations)
    frames = packed(fields[1]).flat_map { |id| locations.fetch(id) }
    labels = fields[3].to_h do |label|
      label = message(label)
      [strings.fetch(label[1].first), strings.fetch(label[2].first || 0)]
    end
    Sample.new(frames.map(&:first), frames.map(&:last), packed(fields[2]).last, labels)
  end

  # The fields of a message, by number; each with the values that it has, in order.
  def self.message(bytes)
    fields = Hash.new { |known, number| known[number] = [] }
    at = 0
    while at < bytes.bytesize
      key, at = varint(bytes, at)
      case key & 7
      when 0 then value, at = varint(bytes, at)
      when 2
        length, at = varint(bytes, at)
        value = bytes.byteslice(at, length)
        raise "a field ends early" if value.nil? || value.bytesize < length

        at += length
      else raise "wire type #{key & 7} is not in a profile"
      end
      fields[key >> 3] << value
    end
    fields
  end

  def self.varint(bytes, at)
    value = shift = 0
    loop do
      byte = bytes.getbyte(at)
      at += 1
      value |= (byte & 127) << shift
      return [value, at] if byte < 128

      shift += 7
    end
  end

  # Numbers that are packed into one field, or one a field.
  def self.packed(values)
    values.flat_map do |value|
      next [value] if value.is_a?(Integer)

      numbers = []
      at = 0
      while at < value.bytesize
        number, at = varint(value, at)
        numbers << number
      end
      numbers
    end
  end
end
