# frozen_string_literal: true

# waits.rb SECONDS FOLDER: five threads, each with a partner, wait in every way, while each wait becomes a sample; profiles go to
# the folder. Prints as JSON what the profiler counted, and what was not done as something is missing here.
require_relative "../../truth/ruby/spans"
require_relative "waits_cancelled"
require_relative "waits_table"

SECONDS = Float(ARGV.fetch(0))
PROFILES = ARGV.fetch(1)
# So many waits a second become samples: more would be dropped, as each of them is drained and written.
RATE = 15_000

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

# Work for a thread, until the time is over.
module Ways
  WaitsTable::SPANS.each do |name|
    module_eval("def self.enter_#{name}(...) = Spans::TRACER.in_span('#{name}') { way_#{name}(...) }", __FILE__, __LINE__)
  end

  module_function

  def work(ways, ended, rounds)
    partner = Partner.new
    chosen = ways.flat_map { |name, (_, often)| [name] * often }
    while now < ended
      name = chosen.sample
      outside_works(partner, name, ways[name].first)
      rounds[name] += 1
      sleep(0.001) while Native.stats[:waits_sampled][:samples] > RATE * (now - ended + SECONDS)
    end
    partner.end
  end

  def outside_works(partner, name, rounds)
    rand(20).zero? ? outside_waits : send(:"enter_#{name}", partner, 1 + rand(2 * rounds))
  rescue Out
    # A signal's handler raised as the wait was over.
  end
end

Thread.report_on_exception = false
Native.install_context_hooks
Native.configure_spans(true, false)
has_modules = WaitsModules.compile(Ways::FOLDER)
missing = ({ module: [0, 0] } unless has_modules).to_h
trap(:USR1) { Ways.handler_raises }
trap(:USR2) { Ways.handler_waits }
settings = { application_name: "waits", server_address: "file://#{PROFILES}", upload_interval: 1, wall_time: true, every_wait: true }
Native.start(settings) or raise "not running: #{Native.messages}"
rounds = Hash.new(0)
ended = now + SECONDS
workers = Array.new(4) { Thread.new { Ways.work(WaitsTable::WORKERS.merge(missing), ended, rounds) } }
Ways.work(WaitsTable::MAIN.merge(missing), ended, rounds)
workers.each(&:join)
stopped = Native.stop(20.0)
FileUtils.remove_entry(Ways::FOLDER)
skipped = has_modules ? [] : ["no C compiler, so no modules are opened and closed"]
puts JSON.generate(stopped:, rounds:, skipped:, stuck: Ways.stuck, stats: Native.stats)
