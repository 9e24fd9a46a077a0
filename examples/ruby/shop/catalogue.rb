# frozen_string_literal: true

# The goods of the shop, the same in every run.
module Catalogue
  SIZE = 3_000
  WORDS = %w[
    red blue green small large light heavy round flat warm cold dry soft hard old new
    lamp chair table shelf cup plate bowl spoon knife coat hat glove boot scarf bag box
  ].freeze

  # All goods, with their attributes as the text that an older system left behind.
  def self.items
    chance = Random.new(2)
    Array.new(SIZE) do |number|
      attributes = WORDS.sample(12, random: chance).map { |word| "#{word}=#{chance.rand(1..4999) / 100.0}" }
      { "id" => number, "sku" => "sku-#{number}", "name" => WORDS.sample(3, random: chance).join(" "),
        "price" => chance.rand(100..89_999) / 100.0, "attributes" => attributes.join(";") }
    end
  end
end
