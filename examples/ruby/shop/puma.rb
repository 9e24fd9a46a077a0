# frozen_string_literal: true

# How Puma runs `checkout`.
workers 2
threads 5, 5
preload_app! # checkout.ru, and with it Pyroscope.configure, runs before the workers are forked.
silence_single_worker_warning

# At TERM the main thread of a worker writes into a pipe that the worker's server thread closes. If it does so while the other is
# still writing, Ruby waits in IO#close for ever: about one end in ten, with Ruby 3.3 and 3.4, Puma 7 and 8, and no profiler. The server
# thread first waits for the threads of requests, one after the other, so what they wait at their end keeps the two apart.
before_thread_exit { sleep 0.1 }

# Leaves what the worker's profiler did in the log: `ci/demo ruby --check` reads it.
before_worker_shutdown do
  Pyroscope.stop
  puts "profiler of worker #{Process.pid}: #{JSON.generate(Pyroscope.stats)}"
end
