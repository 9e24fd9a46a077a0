# frozen_string_literal: true

# How Puma runs `checkout`.
workers 2
threads 5, 5
preload_app! # checkout.ru, and with it Pyroscope.configure, runs before the workers are forked.
silence_single_worker_warning

# At TERM the main thread of a worker writes into a pipe, and the worker's server thread closes it. Without a wait between the
# two about one end in seven hung in IO#close for ever (Ruby 3.3 and 3.4, Puma 7 and 8, no profiler), with it none of 190:
# before it closes, the server thread waits for the threads of requests to end, one after the other.
before_thread_exit { sleep 0.1 }

# Leaves what the worker's profiler did in the log: `ci/demo ruby --check` reads it.
before_worker_shutdown do
  Pyroscope.stop
  puts "profiler of worker #{Process.pid}: #{JSON.generate(Pyroscope.stats)}"
end
