# frozen_string_literal: true

require "async"
require "json"
require "sinatra/base"
require_relative "catalogue"

# `search`: Sinatra on Falcon, where each request is a fiber, and fibers take turns on one thread.
class Search < Sinatra::Base
  SHARDS = 4
  ITEMS = Catalogue.items

  set :host_authorization, permitted_hosts: []

  class << self
    attr_accessor :tracer
  end

  # What was meant: the nearest of all words. Others have their turn after each word.
  get "/suggest" do
    word = params.fetch("word")[0, 16]
    best = Catalogue::WORDS.map do |known|
      sleep(0)
      [edit_distance(word, known), known]
    end
    json({ suggestions: best.min(3).map(&:last) })
  end

  # One task a shard, all at once on the same thread, each inside a span of its own. A task is a fiber, which begins
  # outside of spans in OpenTelemetry, so it takes the request's context along.
  get "/similar/:user" do |user|
    context = OpenTelemetry::Context.current
    tasks = Array.new(SHARDS) do |shard|
      Async { OpenTelemetry::Context.with_current(context) { score_shard(user.to_i, shard) } }
    end
    json({ items: tasks.flat_map(&:wait).sort_by { |item| item[:id] } })
  end

  # The goods that a word describes.
  get "/documents" do
    word = params.fetch("word")
    json({ found: ITEMS.first(600).count { |item| tokenize(item["attributes"]).key?(word) } })
  end

  # Costs next to nothing.
  get("/health") { "ok" }

  private

  def json(value)
    content_type :json
    JSON.generate(value)
  end

  # Levenshtein's distance by the whole table, ten times over to be slow.
  def edit_distance(left, right)
    row = []
    10.times do
      row = (0..right.size).to_a
      left.each_char.with_index(1) do |one, i|
        above = row[0]
        row[0] = i
        right.each_char.with_index(1) do |other, j|
          change = one == other ? above : above + 1
          above = row[j]
          row[j] = [row[j] + 1, row[j - 1] + 1, change].min
        end
      end
    end
    row.last
  end

  # Scores every fourth of the first 600 goods.
  def score_shard(user, shard)
    self.class.tracer.in_span("score shard") do
      (shard...600).step(SHARDS).map.with_index do |number, turn|
        sleep(0) if (turn % 10).zero?
        { id: ITEMS[number]["id"], score: score(user, ITEMS[number]["name"]) }
      end
    end
  end

  # A hash in plain Ruby.
  def score(user, name)
    value = user + 1
    (name * 16).each_byte { |byte| value = ((value * 31) + byte) % 1_000_003 }
    value
  end

  # The words of a text, letter by letter.
  def tokenize(text)
    words = {}
    word = +""
    text.each_char do |character|
      if character.between?("a", "z")
        word << character
      elsif !word.empty?
        words[word] = true
        word = +""
      end
    end
    words
  end
end
