# frozen_string_literal: true

require "json"
require "net/http"
require "sinatra/base"
require_relative "catalogue"

# `checkout`: Sinatra on Puma, with two worker processes forked after the profiler was started, five threads each.
# Each endpoint makes one method hot; tests/demo/demo_test.rb says which.
class Checkout < Sinatra::Base
  CART_SIZE = 40
  ITEMS = Catalogue.items

  set :host_authorization, permitted_hosts: []

  class << self
    attr_accessor :tracer
  end

  # One look-up for each thing in the cart, each of which reads half of the goods.
  get "/cart/:user" do |user|
    skus = Array.new(CART_SIZE) { |position| "sku-#{((user.to_i * 37) + (position * 11)) % Catalogue::SIZE}" }
    json(skus.map { |sku| read_item(sku) })
  end

  # A code is looked for among all that could have been given out.
  post "/coupon" do
    code = JSON.parse(request.body.read).fetch("code")
    valid = self.class.tracer.in_span("check coupon") { coupon?(code) }
    json({ code: code, valid: valid })
  end

  # All goods as JSON, three times.
  get "/export" do
    pages = Array.new(3) { |page| export_page(page) }
    json({ bytes: pages.sum(&:bytesize) })
  end

  # Asks the other service, so that one trace holds spans of both, then sorts what it got.
  get "/offer/:user" do |user|
    answer = Net::HTTP.get(URI("#{ENV.fetch("SEARCH_URL")}/similar/#{user}"))
    ranked = self.class.tracer.in_span("rank offers") { rank(JSON.parse(answer).fetch("items")) }
    json(ranked.first(10))
  end

  # Costs next to nothing.
  get("/health") { "ok" }

  private

  def json(value)
    content_type :json
    JSON.generate(value)
  end

  def read_item(sku)
    index = 0
    index += 1 until ITEMS[index]["sku"] == sku
    item = ITEMS[index]
    item.slice("sku", "name", "price").merge(parse_attributes(item["attributes"]))
  end

  # `red=1.5;blue=2` as a Hash.
  def parse_attributes(text)
    text.split(";").to_h { |pair| pair.split("=") }.transform_values(&:to_f)
  end

  def coupon?(code)
    wanted = code.sum
    number = 0
    while number < 400_000
      return true if (number * 31) % 1_000_003 == wanted * 7919

      number += 1
    end
    false
  end

  def export_page(page)
    JSON.generate({ page: page, items: ITEMS })
  end

  # Insertion sort.
  def rank(scored)
    ranked = []
    scored.each do |item|
      at = 0
      at += 1 while at < ranked.size && ranked[at]["score"] >= item["score"]
      ranked.insert(at, item)
    end
    ranked
  end
end
