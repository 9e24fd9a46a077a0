# frozen_string_literal: true

# What programs do with spans, for truth.rb, which calls a row's block again and again until there is enough.
module TruthRows
  # What the table says of it, the scope of the span processor, and the work.
  Row = Struct.new(:what, :scope, :body) do
    def call = body.call
  end

  ROWS = {}
  def self.row(name, what, scope = :root, &body) = ROWS[name] = Row.new(what, scope, body)

  row("spans", "spans of 0.2 to 50 ms, and code between them") do
    [0.2, 0.5, 1, 2, 5, 10, 20, 50].shuffle.each { |length| span { work length }; work 0.3 }
  end

  row("nested", "three spans in each other, scope :all", :all) do
    span { work 1; span { work 0.5; span { work 2 }; work 0.3 }; work 0.5; span { work 1 }; work 0.2 }
  end

  row("roots", "three spans in each other, scope :root") do
    span { |root| work 1; span(root) { work 0.5; span(root) { work 2 }; work 0.3 }; work 0.5 }
  end

  # By wall time, native threads are not sampled any more once they were seen without a Ruby thread, as Ruby 3.1 keeps them
  # for the next one: so threads stay until there is enough.
  row("threads", "8 threads that take turns within spans", :all) do
    8.times.map do
      Thread.new { (span { work 2; Thread.pass; span { work 1; sleep 0.0005; work 1 }; work 1 }; work 0.5) until Truth.enough? }
    end.each(&:join)
  end

  row("pool", "a pool of 4 threads that attach the caller's context", :all) do
    queue = SizedQueue.new(8)
    pool = 4.times.map do
      Thread.new do
        while (context, number = queue.pop)
          OpenTelemetry::Context.with_current(context) { inside(number) { work 2 }; span { work 2 } }
          work 0.3
        end
      end
    end
    span { |number| queue << [OpenTelemetry::Context.current, number]; work 1 } until Truth.enough?
    queue.close
    pool.each(&:join)
  end

  row("async", "50 async tasks at once", :all) do
    Sync do |top|
      50.times.map { top.async { span { work 0.5; sleep 0.001; work 0.5; span { work 0.3; sleep 0; work 0.3 } }; work 0.2 } }.each(&:wait)
    end
  end

  row("enumerator", "an Enumerator with spans of its own", :all) do
    span do
      numbers = Enumerator.new do |yielder|
        5.times do |number|
          work 0.3 # of the generator's fiber, which begins without a span
          span { work 1; yielder << number; work 1 }
        end
      end
      5.times { numbers.next; work 1 }
    end
  end

  row("scheduler", "Fiber.schedule with sleeps, queues and mutexes", :all) do
    Thread.new do
      Fiber.set_scheduler(Async::Scheduler.new)
      queue = Thread::Queue.new
      mutex = Thread::Mutex.new
      4.times do
        Fiber.schedule do
          (span { work 0.5; queue << 1; mutex.synchronize { sleep 0.001; work 0.5 }; span { work 0.5; sleep 0 } }; work 0.2) until Truth.enough?
          queue.close
        end
        Fiber.schedule { span { work 0.3; queue.pop; work 0.5 } until queue.closed? }
      end
    end.join
  end

  row("exceptions", "exceptions and timeouts through spans", :all) do
    10.times do
      span { work 0.5; span { work 1; raise "out" } }
    rescue RuntimeError
      work 0.5
    end
    begin
      Timeout.timeout(0.02) { span { loop { work 1 } } }
    rescue Timeout::Error
      work 0.5
    end
  end

  def self.leaves_by_return = [1].each { span { work 0.5; return } }

  row("throw", "throw, break and return out of spans", :all) do
    10.times do
      span { catch(:out) { span { work 1; throw :out } }; work 0.5 }
      [1].each { span { work 0.5; break } }
      leaves_by_return
      work 0.5
    end
  end

  row("elsewhere", "spans that another thread finishes", :all) do
    10.times do
      span do
        inner = Truth.tracer.start_span("finished elsewhere")
        Thread.new { inner.finish }.join
        work 1
      end
      span { |_, own| Thread.new { own.finish }.join; work 1 }
    end
  end

  row("outside", "code outside of spans: threads, fibers, tasks") do
    span do
      work 0.3
      Thread.new { work 2 }.join
      Fiber.new { work 2 }.resume
      OpenTelemetry::Context.with_current(OpenTelemetry::Context::ROOT) { Truth.outside { work 1 } }
      started = Truth.tracer.start_span("never current")
      work 0.3
      started.finish
    end
    Sync { |top| 3.times { top.async { work 1; sleep 0; work 1 } } }
    work 2
  end

  row("workers", "2 forked workers of 3 threads", :all) do
    workers = 2.times.map do
      worker { 3.times.map { Thread.new { (span { work 2; Thread.pass; span { work 2 }; work 1 }; work 0.5) until Truth.enough? } }.each(&:join) }
    end
    workers.each { |worker| join(worker) }
  end

  # A child that goes on as forked workers do; what it reads at the end is for the parent to judge by.
  def self.worker
    reader, writer = IO.pipe
    pid = fork do
      reader.close
      Truth.burnt = 0.0
      Truth.least /= 2
      Truth.spans.clear
      yield
      Pyroscope.stop
      writer.write(Marshal.dump([Truth.spans, Truth.burnt]))
      writer.close
      exit!(0)
    end
    writer.close
    [pid, reader]
  end

  def self.join((pid, reader))
    spans, burnt = Marshal.load(reader.read)
    Process.wait(pid)
    Truth.spans.update(spans)
    Truth.burnt += burnt
  end
end
