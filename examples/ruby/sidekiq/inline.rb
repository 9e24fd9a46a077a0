# frozen_string_literal: true

# The same jobs without Redis: each runs in this process, in the thread that asks for it, as in Sidekiq's tests. Until TERM.
#
#   bundle exec ruby inline.rb
ENV["SIDEKIQ_INLINE"] = "1"
require_relative "jobs"

Sidekiq::Testing.inline!
$stdout.sync = true
# In a worker, the instrumentation of Sidekiq does this.
at_exit { OpenTelemetry.tracer_provider.shutdown(timeout: 5) }
puts "jobs run inline"
trap(:TERM) { exit }
(1..).each { |number| Analyse.perform_async(number) }
