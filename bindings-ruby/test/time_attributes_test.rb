# frozen_string_literal: true

require_relative "helper"

# What spans say of their own time, as attributes.
class TimeAttributesTest < Minitest::Test
  # What programs begin with. Seconds by state are what a span says, `wall` is how long it was. What a wait is made for it takes from Ruby's
  # look at the clock on, and the thread may lose its processor between that and the call: `LEAST` leaves it so much time for that.
  BEGINNING = <<~'RUBY'
    require "socket"
    EXPORTER = OpenTelemetry::SDK::Trace::Export::InMemorySpanExporter.new
    SECONDS = 0.1
    LEAST = 0.6 * SECONDS

    def start(wall_time: true, limits: nil, **options)
      Pyroscope.configure(application_name: "app", server_address: "none", wall_time: wall_time)
      provider = OpenTelemetry::SDK::Trace::TracerProvider.new(**{ span_limits: limits }.compact)
      processor = Pyroscope::Otel::SpanProcessor.new(**options)
      yield processor if block_given?
      provider.add_span_processor(processor)
      provider.add_span_processor(OpenTelemetry::SDK::Trace::Export::SimpleSpanProcessor.new(EXPORTER))
      provider.tracer("test")
    end

    def exported(name) = EXPORTER.finished_spans.find { |span| span.name == name } || abort("no span #{name}")

    def attributes(name) = exported(name).attributes.to_h.select { |key, _ns| key.start_with?("pyroscope.time.") }

    def wall(name) = (exported(name).end_timestamp - exported(name).start_timestamp) / 1e9

    def times(name)
      found = attributes(name)
      abort "#{name}: #{found}" unless found.values.all? { |ns| ns.is_a?(Integer) && ns.positive? }
      found = found.to_h { |key, ns| [key.delete_prefix("pyroscope.time."), ns / 1e9] }
      # What a call that waits computes is in both, and what the SDK does before and after.
      abort "#{name}: #{found} of #{wall(name)}" if found.except("cpu").values.sum > wall(name) || found.values.sum > (1.05 * wall(name)) + 0.002
      found
    end

    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    def cpu = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
    def later(&) = Waiting.later(SECONDS, &)

    def check(found, text = nil) = found || abort("#{caller(1, 1)} #{text}")
  RUBY

  def run_program(code, **options)
    assert_ruby(BEGINNING + code, **options)
  end

  def test_off_by_default_and_switched_on_by_argument_or_variable
    on = { "OTEL_PYROSCOPE_TIME_ATTRIBUTES" => "true" }
    [[{}, "", 0], [on, "", 1], [on, "time_attributes: false", 0], [{}, "time_attributes: true", 1]].each do |environment, argument, number|
      run_program(<<~RUBY, environment: environment)
        start(#{argument}).in_span("span") { sleep(SECONDS) }
        check times("span").count { |state, _| state == "sleep" } == #{number}, attributes("span")
        check attributes("span").empty? == #{number.zero?}, attributes("span")
      RUBY
    end
  end

  def test_threads_that_begin_at_once_lose_no_wait
    run_program(<<~'RUBY')
      tracer = start(time_attributes: true)
      Array.new(100) { Thread.new { tracer.in_span("span") { sleep(SECONDS) } } }.each(&:join)
      stats = Pyroscope.stats
      check stats[:waits_taken][:samples] >= 100, stats
      check stats[:waits_dropped_thread][:samples].zero?, stats
    RUBY
  end

  # A wait that ends while another thread collects: its stack cannot be read before that is over.
  def test_a_sleep_beside_collections_is_a_sleep
    run_program(<<~'RUBY')
      tracer = start(time_attributes: true)
      collections = GC.count
      collector = Thread.new { loop { GC.start } }
      Thread.pass until GC.count > collections + 2
      20.times { tracer.in_span("span") { sleep(0.02) } }
      collector.kill.join
      all = Hash.new(0)
      EXPORTER.finished_spans.each { |span| span.attributes.each { |key, ns| all[key] += ns / 1e9 if key.start_with?("pyroscope.time.") } }
      check all["pyroscope.time.sleep"] >= 0.4 * LEAST / SECONDS, all
      check all["pyroscope.time.lock"] + all["pyroscope.time.io"] < 0.01, all
    RUBY
  end

  def test_each_wait_is_in_its_state_and_all_are_no_more_than_the_span
    run_program(<<~'RUBY')
      tracer = start(time_attributes: true)
      ways = {
        "sleep" => -> { sleep(SECONDS) },
        "io" => -> { UNIXSocket.pair.then { |ours, theirs| later { theirs << "x" } && ours.recv(1) } },
        "lock" => -> { Queue.new.then { |queue| later { queue << 1 } && queue.pop } },
        "lock mutex" => -> { Waiting.held(SECONDS).synchronize { nil } },
        "child" => -> { IO.pipe.then { |reader, writer| later { writer << "\n" } && system("read line;", in: reader) } }
      }
      ways.each do |way, wait|
        tracer.in_span(way) { wait.call }
        found = times(way)
        state = way[/\w+/]
        check found.fetch(state, 0) >= LEAST, "#{way}: #{found}"
        check found.fetch("cpu", 0) > 0, "#{way}: #{found}"
        check found.except(state, "cpu", "gvl", "run_queue").values.sum < 0.5 * wall(way), "#{way}: #{found}"
      end
    RUBY
  end

  def test_cpu_time_is_that_in_which_the_span_or_one_in_it_was_current
    %i[root all].each do |scope|
      run_program(<<~RUBY)
        tracer = start(time_attributes: true, scope: :#{scope})
        least = most = 0
        spend = lambda do |span, &work|
          began = cpu
          OpenTelemetry::Trace.with_span(span) do
            within = cpu
            work.call
            least += cpu - within
          end
          most += cpu - began
        end
        context = OpenTelemetry::Context::ROOT
        span = tracer.start_root_span("span")
        burn(30)
        spend.call(span) { burn(10) }
        burn(30)
        began = cpu
        tracer.in_span("another") { burn(30) }
        another = cpu - began
        inner = 0
        spend.call(span) do
          tracer.in_span("child") { burn(10) }
          began = cpu
          OpenTelemetry::Context.with_current(context) { tracer.in_span("inner") { burn(30) } }
          inner = cpu - began
          burn(10)
        end
        burn(30)
        span.finish
        found = times("span").fetch("cpu")
        check found.between?(least - inner, most - 0.03), [found, least, most, inner]
        check times("inner").fetch("cpu").between?(0.03, inner), [times("inner"), inner]
        check times("another").fetch("cpu").between?(0.03, another), [times("another"), another]
      RUBY
    end
  end

  # Far too short and too few to be seen by samples each time: of these there would be nine or so. Some are over before they begin, as
  # the thread had no processor meanwhile.
  def test_a_single_short_wait_is_said_each_time
    run_program(<<~'RUBY')
      tracer = start(time_attributes: true)
      said = Array.new(50) do |number|
        tracer.in_span("span #{number}") { sleep(0.0002) }
        times("span #{number}").fetch("sleep", 0)
      end
      check said.count { |seconds| seconds >= 0.0001 } > 35, said
    RUBY
  end

  def test_a_wait_for_the_gvl
    run_program(<<~'RUBY')
      tracer = start(time_attributes: true)
      tracer.in_span("span") do
        thread = Thread.new { burn(600) }
        sleep(0.0001) while thread.alive?
      end
      found = times("span")
      # On a busy machine who has slept waits for a processor before it waits for the GVL.
      check found.fetch("gvl", 0) > 0.15, found
      check found.fetch("sleep", 0) < 0.5 * wall("span"), found
    RUBY
  end

  def test_the_suspension_of_a_span_s_own_fiber
    run_program(<<~'RUBY')
      tracer = start(time_attributes: true, scope: :all)
      fibers = Array.new(2) { |number| Fiber.new { tracer.in_span("fiber #{number}") { Fiber.yield } } }
      fibers.each(&:resume)
      sleep(SECONDS)
      fibers.each(&:resume)
      2.times do |number|
        found = times("fiber #{number}")
        check found.fetch("await", 0) >= LEAST && !found.key?("sleep") && !found.key?("cpu"), found
      end
      # A short one too.
      50.times do |number|
        fiber = Fiber.new { tracer.in_span("short #{number}") { Fiber.yield } }
        fiber.resume
        sleep(0.0002)
        fiber.resume
        check times("short #{number}").fetch("await", 0) >= 0.0001, attributes("short #{number}")
      end
    RUBY
  end

  def test_the_suspensions_of_ten_thousand_fibers_at_once
    run_program(<<~'RUBY')
      tracer = start(time_attributes: true, scope: :all)
      fibers = Array.new(10_000) { Fiber.new { tracer.in_span("fiber") { Fiber.yield } } }
      fibers.each(&:resume)
      sleep(SECONDS)
      fibers.each(&:resume)
      known = EXPORTER.finished_spans.count { |span| span.attributes.fetch("pyroscope.time.await", 0) >= LEAST * 1e9 }
      check known >= 9_990, known
    RUBY
  end

  def test_what_other_fibers_do_in_a_span_meanwhile_is_beside_it
    run_program(<<~'RUBY')
      tracer = start(time_attributes: true, inherit_fibers: true)
      own = Fiber.new do
        tracer.in_span("span") do
          others = Array.new(3) { Fiber.new { Fiber.yield && sleep(SECONDS) } }
          Fiber.yield others
        end
      end
      others = own.resume
      others.each(&:resume)
      sleep(SECONDS)
      others.each { |other| other.resume(true) }
      own.resume
      found = times("span")
      check found.fetch("await", 0) >= 4 * LEAST && !found.key?("sleep"), found
    RUBY
  end

  def test_child_spans
    run_program(<<~'RUBY')
      nest = lambda do |tracer, name|
        tracer.in_span("outer #{name}") do
          sleep(SECONDS)
          tracer.in_span("inner #{name}") { sleep(3 * SECONDS) && burn(30) }
        end
      end
      nest.call(start(time_attributes: true), "root")
      check times("outer root").fetch("sleep") >= 4 * LEAST, attributes("outer root")
      check attributes("inner root").empty?, attributes("inner root")
      nest.call(start(time_attributes: true, scope: :all), "all")
      inner, outer = times("inner all"), times("outer all")
      check inner.fetch("sleep") >= 3 * LEAST && !inner.key?("cpu"), inner
      # Its child's sleep is the child's, its child's CPU time is in the local root's.
      check outer.fetch("sleep") + inner.fetch("sleep") <= wall("outer all") && outer.fetch("sleep") >= LEAST, outer
      check outer.fetch("cpu") >= 0.03, outer
    RUBY
  end

  def test_a_span_that_another_thread_goes_on_with_and_ends
    run_program(<<~'RUBY')
      tracer = start(time_attributes: true)
      span = tracer.start_span("span")
      OpenTelemetry::Trace.with_span(span) { sleep(SECONDS) }
      Thread.new do
        OpenTelemetry::Trace.with_span(span) { sleep(4 * SECONDS) }
        span.finish
      end.join
      found = times("span")
      check found.fetch("sleep").between?(LEAST, wall("span") - (4 * LEAST)) && !found.key?("cpu"), found
    RUBY
  end

  def test_a_fork_within_a_span
    run_program(<<~'RUBY')
      tracer = start(time_attributes: true)
      child = slept = nil
      tracer.in_span("outer") do
        began = now
        sleep(SECONDS)
        slept = now - began
        child = fork
        unless child
          EXPORTER.reset
          tracer.in_span("inner") { sleep(SECONDS) }
          # What goes on here is the parent's span, which has its own time there.
          sleep(4 * SECONDS)
        end
      end
      unless child
        check attributes("outer").empty?, attributes("outer")
        OpenTelemetry::Context.clear
        tracer.in_span("own") { sleep(SECONDS) && burn(1) }
        check times("own").fetch("sleep", 0) >= LEAST && times("own").key?("cpu"), times("own")
        exit!(0)
      end
      Process.wait(child)
      check $?.success?
      check times("outer").fetch("sleep").between?(LEAST, slept), [times("outer"), slept]
    RUBY
  end

  # Their sums would lie in memory that others have by then.
  def test_spans_that_nothing_refers_to_any_more_while_they_are_current
    run_program(<<~'RUBY')
      require "fiddle"
      tracer = start(time_attributes: true)
      leave = lambda do |depth|
        next leave.call(depth - 1) if depth.positive?

        OpenTelemetry::Context.attach(OpenTelemetry::Trace.context_with_span(tracer.start_span("left")))
        # OpenTelemetry's own stack, where we are not told.
        Fiber.current.instance_variables.grep(/opentelemetry/).each { |name| Fiber.current.instance_variable_get(name).clear }
        Thread.current.keys.grep(/opentelemetry/).each { |name| Thread.current[name].clear }
      end
      changed = Array.new(20) do
        Thread.new do
          leave.call(50)
          GC.start
          others = [144, 160, 176, 192].flat_map { |size| Array.new(20) { Fiddle::Pointer.malloc(size, Fiddle::RUBY_FREE).tap { |memory| memory[0, size] = "\0" * size } } }
          10.times { sleep(0.0001) }
          others.count { |memory| memory[0, memory.size].count("^\0").positive? }
        end.value
      end
      check changed.sum.zero?, changed
    RUBY
  end

  def test_as_many_attributes_as_the_sdk_allows
    run_program(<<~'RUBY')
      limits = OpenTelemetry::SDK::Trace::SpanLimits.new(attribute_count_limit: 3)
      start(time_attributes: true, limits: limits).in_span("span") do |span|
        span.set_attribute("own", 1)
        sleep(SECONDS) && burn(1)
      end
      span = exported("span")
      check span.attributes.size == 3 && span.attributes["own"] == 1 && attributes("span").size == 1, span.attributes
      check span.total_recorded_attributes > 3, span
    RUBY
  end

  # As older ones do: only those processors see them that come later.
  def test_an_sdk_that_tells_of_ends_afterwards
    run_program(<<~'RUBY')
      Pyroscope::Otel::Times.send(:remove_const, :HAS_ON_FINISHING)
      Pyroscope::Otel::Times::HAS_ON_FINISHING = false
      tracer = start(time_attributes: true) { |processor| processor.singleton_class.undef_method(:on_finishing) }
      tracer.in_span("span") { sleep(SECONDS) }
      check times("span").fetch("sleep", 0) >= LEAST, attributes("span")
      check exported("span").attributes.frozen?
    RUBY
  end

  def test_a_span_that_is_another_than_the_sdk_s_ends_as_ever
    said = run_program(<<~'RUBY')
      tracer = start(time_attributes: true)
      2.times { tracer.in_span("span") { |span| sleep(0.001) && span.instance_variable_set(:@span_limits, nil) } }
      check EXPORTER.finished_spans.size == 2 && attributes("span").empty?
    RUBY
    assert_equal 1, said.scan("spans have no attributes that say their time").size, said
  end

  def test_what_is_missing_without_wall_time_is_said_once
    said = run_program(<<~'RUBY')
      2.times do |number|
        start(wall_time: false, time_attributes: true).in_span("span #{number}") { sleep(0.01) && burn(1) }
        check times("span #{number}").keys == ["cpu"], attributes("span #{number}")
      end
    RUBY
    assert_equal 1, said.scan("time_attributes needs wall time, configure(wall_time: true) or PYROSCOPE_PROFILING_WALLTIME_ENABLED=true").size, said
  end

  def test_after_shutdown_spans_say_nothing
    run_program(<<~'RUBY')
      processor = nil
      tracer = start(time_attributes: true) { |made| processor = made }
      processor.shutdown
      tracer.in_span("span") { sleep(SECONDS) }
      check attributes("span").empty?, attributes("span")
    RUBY
  end
end
