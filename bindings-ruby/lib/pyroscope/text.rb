# frozen_string_literal: true

module Pyroscope
  # Texts for the native part, which takes valid UTF-8 alone.
  module Text
    # The value as text. Bytes that no UTF-8 has become U+FFFD. Allocates nothing for a String that is right already.
    #
    # @param value [Object] anything that has to_s
    # @return [String] valid UTF-8
    def self.of(value)
      text = value.to_s
      return text if text.encoding == Encoding::UTF_8 && text.valid_encoding?

      # What a locale or a socket left without an encoding is UTF-8 mostly.
      unnamed = [Encoding::BINARY, Encoding::US_ASCII, Encoding::UTF_8].include?(text.encoding)
      return text.dup.force_encoding(Encoding::UTF_8).scrub if unnamed

      text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace)
    end

    # The same for names and values of a Hash.
    #
    # @param pairs [Hash]
    # @return [Hash{String => String}] a new one
    def self.pairs(pairs)
      pairs.to_h { |name, value| [of(name), of(value)] }
    end
  end
end
