# frozen_string_literal: true

require_relative "helper"

class RailsTest < Minitest::Test
  APP = <<~'RUBY'
    require "action_controller/railtie"
    require "rack/mock"

    class App < Rails::Application
      config.eager_load = false
      config.hosts.clear
      config.logger = Logger.new(nil)
      config.secret_key_base = "x" * 64
      routes.append do
        get "/orders/:id" => "orders#show"
        get "/stock" => "stock#index"
      end
    end

    class OrdersController < ActionController::Base
      def show = burn_until_sampled && render(plain: "ok")
    end

    class StockController < ActionController::API
      def index = burn_until_sampled && render(json: {})
    end

    Pyroscope.configure(application_name: "app", server_address: ARGV[0], autoinstrument_rails: ARGV[1] == "true")
    App.initialize!
    %w[/orders/7 /stock].each do |path|
      answer = Rack::MockRequest.new(App).get(path)
      abort "#{path}: #{answer.status} #{answer.body}" unless answer.status == 200
    end
  RUBY

  def setup
    skip "the tests' Rails needs Ruby 3.4, this is #{RUBY_VERSION}" if RUBY_VERSION < "3.4"
  end

  def actions(autoinstrument)
    samples = samples_of(APP, autoinstrument.to_s).select { |sample| sample.functions.any? { |frame| frame.end_with?("#burn_until_sampled") } }
    samples.map { |sample| sample.labels["action"] }.uniq
  end

  def test_samples_of_an_action_carry_its_name
    assert_equal %w[orders/show stock/index], actions(true).sort
  end

  def test_autoinstrument_rails_false_tags_nothing
    assert_equal [nil], actions(false)
  end
end
