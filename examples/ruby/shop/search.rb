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

  # Levenshtein's distance by the whole table, twenty times over to be slow.
  def edit_distance(left, right)
    left = left.bytes
    right = right.bytes
    row = []
    20.times do
      row = (0..right.size).to_a
      i = 0
      while i < left.size
        above = row[0]
        row[0] = i + 1
        j = 0
        while j < right.size
          change = left[i] == right[j] ? above : above + 1
          above = row[j + 1]
          least = row[j] < above ? row[j] + 1 : above + 1
          row[j + 1] = change < least ? change : least
          j += 1
        end
        i += 1
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
    16.times do
      at = 0
      while at < name.bytesize
        value = ((value * 31) + name.getbyte(at)) % 1_000_003
        at += 1
      end
    end
    value
  end

  # The words of a text, letter by letter.
  def tokenize(text)
    words = {}
    from = at = 0
    while at <= text.bytesize
      letter = text.getbyte(at) || 0
      unless letter.between?(97, 122)
        words[text[from...at]] = true if at > from
        from = at + 1
      end
      at += 1
    end
    words
  end
end
