# frozen_string_literal: true

# How Puma runs `checkout`.
workers 2
threads 5, 5
preload_app! # checkout.ru, and with it Pyroscope.configure, runs before the workers are forked.
silence_single_worker_warning

# Leaves what the worker's profiler did in the log: `ci/demo ruby --check` reads it.
before_worker_shutdown do
  Pyroscope.stop
  puts "profiler of worker #{Process.pid}: #{JSON.generate(Pyroscope.stats)}"
end
