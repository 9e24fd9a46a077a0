# frozen_string_literal: true

# What `wall_time` costs a web service: CPU time a request, with it over without, both with the profiler at 100 Hz.
#
#   ruby web_cost.rb threads|fibers --server URL [--pairs N] [--requests N]      prints JSON, percent
#
# A request has a root span and three children. Each child asks a backend (another process, which answers after half a
# millisecond) over a kept connection, and works with the answer: JSON, sorting, text. Between them it takes a lock and asks
# SQLite. `threads` serves by eight threads, as Puma does, `fibers` by eight tasks of one event loop, as Falcon does. About a
# millisecond of CPU time each, a dozen calls of I/O, beside these locks and waits for the GVL.
#
# The slices, their order (ABBA), the pairs and the control are overhead.rb's; here a slice without has `wall_time: false`. Each
# slice ends with a `flush`, so cutting, encoding and upload of what was waited for is in it, more often than in a service. The
# service keeps to one processor, the backend to another.
require_relative "overhead"
require "async"
require "net/http"
require "socket"
require "sqlite3"

module WebCost
  WORKERS = 8
  LINES = Array.new(60) { |n| { sku: "item#{n}", price: 100 + n * 7 % 31, count: n % 5 } }.freeze
  ANSWER = JSON.generate({ lines: LINES }).then { |body| "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: #{body.bytesize}\r\n\r\n#{body}" }

  # What requests share: a lock and a database.
  class Stock
    def initialize
      @lock, @served = Mutex.new, 0
      @database = SQLite3::Database.new(":memory:")
      @database.execute("create table items (sku text primary key, stock integer)")
      LINES.each { |line| @database.execute("insert into items values (?, ?)", line.values_at(:sku, :count)) }
    end

    def sum
      @lock.synchronize do
        @served += 1
        @database.get_first_value("select sum(stock) from items where sku > ?", ["item3"])
      end
    end
  end

  # What a worker does, over a connection of its own.
  class Work
    def initialize(port, stock)
      @http, @stock = Net::HTTP.start("127.0.0.1", port), stock
    end

    def handle(tracer)
      tracer.in_span("GET /order") do
        %w[lines prices page].each do |name|
          tracer.in_span(name) { page(@http.get("/lines").body) }
          @stock.sum
        end
      end
    end

    def end = @http.finish

    private

    def page(body)
      lines = JSON.parse(body).fetch("lines").sort_by { |line| [line["price"], line["sku"]] }
      lines.map { |line| format("<tr><td>%10s</td><td>%.2f</td></tr>", line["sku"], line["price"] / 100.0) }.join("\n")
    end
  end

  class Threads < Overhead::Service
    def initialize(port)
      @port, @stock = port, Stock.new
      super(WORKERS)
    end

    private

    def serve(orders)
      work = Work.new(@port, @stock)
      super(orders, work)
      work.end
    end
  end

  class Fibers
    def initialize(port)
      stock = Stock.new
      @works = Array.new(WORKERS) { Work.new(port, stock) }
    end

    # All tasks together handle that many requests.
    def slice(tracer, requests)
      each = (requests.to_f / WORKERS).ceil
      Sync do |loop|
        @works.map { |work| loop.async { Overhead::Work.at_depth(Overhead::FRAMES - 8) { each.times { work.handle(tracer) } } } }.each(&:wait)
      end
    end

    def end = @works.each(&:end)
  end

  # Slices with and without `wall_time`.
  class Slices < Overhead::Slices
    def with = time_with(:on, wall_time: true)
    def without = time_with(:off, wall_time: false)

    private

    def time_with(side, **settings)
      profiled(**settings) do |tracer|
        before = nil
        # The samples of waits that may come at first are spent before the clock is read: a service starts once.
        each = time(tracer, warmup: 1, finish: -> { Pyroscope.flush(30) }) { before = Pyroscope.stats }
        count(side, before, Pyroscope.stats, each * requests)
        each
      end
    end
  end

  module_function

  # The block gets the port of a backend, which ends with it, or with this process.
  def with_backend(processor)
    server = TCPServer.new("127.0.0.1", 0)
    IO.popen("-", "w") do |backend|
      if backend
        keep_to(processor, backend.pid)
        yield server.local_address.ip_port
      else
        answer(server)
      end
    end
  end

  def answer(server)
    Thread.new do
      loop do
        Thread.new(server.accept) do |socket|
          while socket.gets("\r\n\r\n")
            sleep(0.0005)
            socket.write(ANSWER)
          end
        end
      end
    end
    $stdin.read
    exit!(0)
  end

  def keep_to(processor, process)
    system("taskset", "--all-tasks", "--cpu-list", "--pid", processor, process.to_s, out: File::NULL, exception: true)
  end
end

options = Program.options(server: "none", pairs: 30, requests: 3200)
kind = { "threads" => WebCost::Threads, "fibers" => WebCost::Fibers }.fetch(ARGV.fetch(0))
processors = File.read("/proc/self/status")[/^Cpus_allowed_list:\s*(.+)/, 1]
WebCost.with_backend(processors[/\A\d+/]) do |port|
  WebCost.keep_to(processors[/\d+\z/], Process.pid)
  service = kind.new(port)
  slices = WebCost::Slices.new(options[:server], service, options[:requests])
  record = Overhead.measure(slices, options[:pairs])
  service.end
  Program.print({ **record, on: slices.counted(:on), off: slices.counted(:off) })
end
