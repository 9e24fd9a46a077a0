# frozen_string_literal: true

module Pyroscope
  # Tags what a Rails application runs with the controller and action that run it: action="orders/show".
  module Rails
    ACTION = lambda do |controller, action|
      if Pyroscope.running?
        Pyroscope.tag_wrapper({ action: "#{controller.controller_name}/#{controller.action_name}" }, &action)
      else
        action.call
      end
    end

    @installed = false

    # Once, when Rails is there: controllers get the callback as they are loaded.
    def self.install
      return if @installed || !defined?(::ActiveSupport.on_load)

      @installed = true
      %i[action_controller_base action_controller_api].each do |part|
        ActiveSupport.on_load(part) { |controllers| controllers.around_action(ACTION) }
      end
      nil
    end
  end

  # What an application with `autoinstrument_rails = false` may call itself, any number of times.
  #
  # @return [nil]
  def self.initialize_rails_hooks
    Rails.install
  end
end
