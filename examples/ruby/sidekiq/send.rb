# frozen_string_literal: true

# Asks for jobs for some seconds, and waits until the worker has taken all of them.
#
#   bundle exec ruby send.rb 8
require_relative "jobs"
require "sidekiq/api"

at_exit { OpenTelemetry.tracer_provider.shutdown(timeout: 5) }

AT_ONCE = 4
AT_LEAST = 8 # Jobs, so that a busy machine has something to show too.

ends = Process.clock_gettime(Process::CLOCK_MONOTONIC) + ARGV.fetch(0).to_f
asked = 0
until asked >= AT_LEAST && Process.clock_gettime(Process::CLOCK_MONOTONIC) >= ends
  AT_ONCE.times { Analyse.perform_async(asked += 1) }
  sleep(0.05) until Sidekiq::Queue.new.size.zero?
end
puts "#{asked} jobs were taken"
