# frozen_string_literal: true

module Pyroscope
  # Tags what a Rails application runs with the controller and action that run it: action="orders/show".
  module Rails
    ACTION = lambda do |controller, action|
      if Pyroscope.current_config&.autoinstrument_rails
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
      ActiveSupport.on_load(:action_controller_base) { around_action(ACTION) }
      ActiveSupport.on_load(:action_controller_api) { around_action(ACTION) }
    end
  end
end
