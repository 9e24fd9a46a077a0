# frozen_string_literal: true

require_relative "../../../tests/truth/ruby/native_helper"

# Samples where it is hard: garbage collection, native code without the GVL, code that is gone, forks, stops.
class SamplingTest < NativeTest
  # What the profile has of the time that passed, by the clock that it samples by.
  SEEN = 0.9..1.1
  # By wall time, where all of it must be seen: a thread's ring then has room for what it is sampled in half a second, until which it is
  # drained on a busy machine too.
  ALL = "sample_rate: 200, wall_clock: true"

  each_mode("garbage_collection_is_on_the_span_that_pays") do |options|
    result = result_of(<<~RUBY, options: options)
      Native.install_context_hooks
      Native.configure_spans(true, false)
      def churn(seconds)
        done = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) + seconds
        keep = []
        while Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) < done
          keep << Array.new(50) { "x" * 40 }
          keep.clear if keep.size > 2_000
        end
      end
      took = collected = nil
      samples = profiled(#{ALL}) do
        before = GC.total_time
        took = wall_ns { Spans::TRACER.in_span("collects") { churn(0.7) } }
        collected = GC.total_time - before
        busy 50
      end
      # A machine that has other work may not empty a ring in time, which is counted, of whichever thread.
      dropped = Native.stats[:dropped_ring][:weight]
      churning = samples.select { |sample| sample.functions.any? { |name| name.end_with?("churn") } }
      collecting = churning.select { |sample| sample.functions.first == "(garbage collection)" }
      puts JSON.generate(collecting: collecting.sum(&:weight), collected: collected, others: churning.map { |sample| sample.labels["span_name"] }.uniq - ["collects"],
                         took: took, dropped: dropped, in_span: samples.select { |sample| sample.labels["span_name"] == "collects" }.sum(&:weight))
    RUBY
    assert_empty result[:others]
    # Ruby counts its CPU time, which is less than the time that it took.
    assert_operator result[:collected], :>, 30_000_000
    assert_operator result[:collecting] + result[:dropped], :>, 0.7 * result[:collected], result.to_s
    assert_operator result[:in_span] + result[:dropped], :>, 0.9 * result[:took], result.to_s
    assert_operator result[:in_span], :<, 1.1 * result[:took], result.to_s
  end

  each_mode("cpu_seen_of_cpu_burnt") do |options|
    result = result_of(<<~RUBY, options: options)
      require "digest"
      require "zlib"
      def sorting = Array.new(200_000) { rand }.sort
      def matching = ("abc def " * 20_000).gsub(/d(e)f/) { $1 }
      def digesting(text = "x" * 20_000_000) = Digest::SHA256.digest(text)
      def deflating(text = "abc" * 3_000_000) = 2.times.map { Thread.new { Zlib.deflate(text) } }.each(&:join)
      def short = 15.times { Thread.new { busy 20 }.join }
      # Of all threads but the engine's.
      read = lambda do |task, name|
        File.read(File.join(task, name))
      rescue Errno::ENOENT, Errno::ESRCH
        "" # it has ended
      end
      own = -> { Dir["/proc/self/task/*"].select { |task| read.call(task, "comm").start_with?("spanprof") } }
      of_engine = -> { own.call.sum { |task| read.call(task, "schedstat").to_i } / 1e9 }
      cpu = -> { Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - of_engine.call }
      burnt = {}
      samples = profiled(sample_rate: 100) do
        %i[sorting matching digesting deflating short].each do |name|
          before = cpu.call
          send(name) while cpu.call < before + 0.25
          burnt[name] = cpu.call - before
        end
      end
      puts JSON.generate(burnt: burnt.values.sum, seen: samples.sum(&:weight) / 1e9, functions: samples.flat_map(&:functions).uniq)
    RUBY
    assert_includes SEEN, result[:seen] / result[:burnt]
    assert_empty %w[Array#sort String#gsub Zlib.deflate].map { |name| name.sub(".", RUBY_VERSION < "3.4" ? ".<<|." : ".") }
                                                        .reject { |name| result[:functions].any? { |found| found.match?(name) } }
  end

  def test_names_have_no_addresses_and_code_that_is_gone_keeps_its_name
    result = result_of(<<~RUBY)
      samples = profiled(wall_clock: true) do
        30.times do |number|
          object = Object.new
          def object.single = busy(2)
          object.single
          eval("def made_\#{number % 3} = busy(2)")
          send("made_\#{number % 3}")
          Class.new { def anonymous = busy(2) }.new.anonymous
          GC.start
          GC.compact if number % 7 == 0
        end
      end
      puts JSON.generate(samples.flat_map(&:functions).uniq)
    RUBY
    assert_empty result.grep(/0x/)
    %w[single made_0 made_1 made_2 anonymous].each { |name| assert result.any? { |found| found.include?(name) }, "#{name}: #{result}" }
    # A stack may be, of a thread that was just looked at when this one began to compact.
    assert_empty result.grep(/unreadable frame|too many/)
  end

  def test_many_functions_that_are_made_and_dropped_leave_no_memory
    result = result_of(<<~RUBY)
      resident = -> { GC.start; File.read("/proc/self/statm").split[1].to_i * 4096 }
      before = nil
      profiled(sample_rate: 1000, upload_interval: 1) do
        3_000.times do |number|
          Module.new { module_eval("def self.f\#{number} = busy(1)") }.then { |made| made.send("f\#{number}") }
          before = resident.call if number == 800
        end
        Native.flush(10.0)
        puts JSON.generate(grown: resident.call - before, unresolved: Native.stats[:frames_unresolved])
      end
    RUBY
    assert_operator result[:grown], :<, 8 << 20
    assert_equal 0, result[:unresolved]
  end

  # Without their marks some were "(unreadable frame)", and now and then one that was being swept ended the process.
  def test_functions_that_are_gone_live_until_each_of_a_drain_has_its_name
    result = result_of(<<~'RUBY')
      samples = profiled(wall_clock: true) do
        10.times do |number|
          Module.new { module_eval("def self.gone_#{number} = busy(3)") }.then { |made| made.send("gone_#{number}") }
        end
        # All that keeps them is their samples; each name that is asked for collects garbage.
        GC.stress = true
        Native.flush(30.0)
        GC.stress = false
      end
      names = samples.flat_map(&:functions).uniq
      puts JSON.generate(unreadable: names.grep(/unreadable/), gone: names.grep(/gone_\d\z/).size)
    RUBY
    assert_empty result[:unreadable]
    assert_operator result[:gone], :>, 5
  end

  def test_nothing_is_lost_while_no_ruby_code_runs
    result = result_of(<<~RUBY)
      require "digest"
      # One call of C that holds the GVL, and one that does not, each longer than many drains.
      samples = profiled(sample_rate: 1000, upload_interval: 1) { Array.new(1_500_000) { |n| -n }.sort_by { |n| n }; Digest::SHA256.digest("x" * 200_000_000) }
      puts JSON.generate(Native.stats.slice(:taken, :uploaded, :dropped_ring))
    RUBY
    assert_equal result[:taken], result[:uploaded]
    assert_equal 0, result[:dropped_ring][:samples]
  end

  def test_a_child_profiles_with_a_fork_in_a_fork_and_threads
    result = result_of(<<~RUBY)
      Native.install_context_hooks
      Native.configure_spans(true, false)
      Dir.mktmpdir do |folder|
        Native.start({ application_name: "test", server_address: "file://\#{folder}", #{ALL} })
        took = File.open(File.join(folder, "took"), "a")
        took.sync = true
        burn = ->(name, &more) { took.puts(JSON.generate([name, wall_ns { Spans::TRACER.in_span(name) { busy(100) && more&.call } }])) }
        work = ->(name) { burn.call(name) { Thread.new { burn.call("\#{name} thread") }.join } }
        Thread.new { busy 1 }.join
        child = fork do
          Native.after_fork
          grandchild = fork { Native.after_fork; work.call("grandchild"); Native.stop(10.0); exit!(0) }
          work.call("child")
          Process.wait(grandchild)
          exit!(Native.stop(10.0) && $?.success? ? 0 : 1)
        end
        # Past Process._fork and Ruby's hooks: the first span does what they would.
        unhooked = fork { Spans::TRACER.in_span("first") { nil }; work.call("unhooked"); exit!(Native.stop(10.0) ? 0 : 1) }
        work.call("parent")
        ended = [child, unhooked].map { |pid| Process.wait2(pid).last.success? }
        Native.stop(10.0)
        samples = Profile.of_folder(folder)
        seen = samples.group_by { |sample| sample.labels["span_name"] }.transform_values { |some| some.sum(&:weight) }
        seen = seen.except(nil, "first")
        puts JSON.generate(ended: ended, seen: seen, took: File.readlines(took.path).to_h { |line| JSON.parse(line) })
      end
    RUBY
    assert_equal [true, true], result[:ended]
    names = %i[parent child grandchild unhooked].flat_map { |name| [name, :"#{name} thread"] }.sort
    assert_equal [names, names], [result[:took].keys.sort, result[:seen].keys.sort]
    # On a busy machine a child's profiler begins some milliseconds after its first span.
    names.each { |name| assert_includes -40e6..0.2 * result[:took][name], result[:seen][name] - 0.9 * result[:took][name], "#{name}: #{result}" }
  end

  # Past Process._fork and Ruby's hooks: what the parent had runs in no child, and is neither waited for nor in the way.
  def test_a_child_leaves_the_profiler_of_its_parent_behind
    output = run_program(<<~'RUBY')
      Native.install_context_hooks
      Native.configure_spans(true, false)
      start = -> { Native.start({ application_name: "test", server_address: "none", sample_rate: 1000, wall_clock: true }) }
      in_child = lambda do |&check|
        Process.wait2(fork { exit!(check.call ? 0 : 1) }).last.success?
      end
      own = lambda do
        Spans::TRACER.in_span("span") { busy 1 until Native.stats[:taken][:samples].positive? }
        Native.running? && Native.stop(10.0) && !Native.running? && start.call && Native.stop(10.0)
      end
      start.call
      busy 20
      p in_child.call { !Native.running? && !Native.flush(10.0) && !Native.stop(10.0) && Native.stats[:taken][:samples].zero? }
      p in_child.call { start.call && own.call }
      p in_child.call { Native.after_fork && own.call }
      Native.stop(10.0)
      p in_child.call { start.call && own.call }
      p in_child.call { Native.after_fork || (start.call && own.call) }
      p Native.messages
    RUBY
    assert_equal %w[true true true true true []], output.split
  end

  def test_stop_leaves_no_thread_timer_or_hook_and_start_works_again
    result = result_of(<<~RUBY)
      Native.install_context_hooks
      Native.configure_spans(true, false)
      timers = -> { File.read("/proc/self/timers").scan(/^ID/).size }
      state = -> { [Thread.list.size, Dir["/proc/self/task/*"].size, timers.call] }
      Thread.new { 1 }.join
      before = state.call
      seen = Array.new(3) do
        samples = profiled(#{ALL}) { Spans::TRACER.in_span("again") { busy 50 } }
        samples.count { |sample| sample.labels["span_name"] == "again" }.positive?
      end
      Spans::TRACER.in_span("after") { seen << Native.current_span }
      deadline = Time.now + 60
      # Ruby keeps native threads of ended ones for a while, so there may be fewer.
      left = -> { state.call.zip(before).all? { |now, then_| now <= then_ } }
      Thread.pass until left.call || Time.now > deadline
      puts JSON.generate(before: before, after: state.call, left: left.call, seen: seen, running: Native.running?, stopped: Native.stop(1.0))
    RUBY
    assert result[:left], result
    assert_equal [true, true, true, nil], result[:seen]
    refute result[:running]
    refute result[:stopped]
  end

  def test_a_program_may_kill_all_threads
    result = result_of(<<~RUBY)
      before = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
      burnt = 0
      samples = profiled do
        burnt += busy 50
        (Thread.list - [Thread.current]).each { |thread| thread.kill.join }
        burnt += busy 50
      end
      all = 1e9 * (Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - before)
      puts JSON.generate(weight: samples.sum(&:weight), burnt: burnt, all: all)
    RUBY
    assert_includes (0.8 * result[:burnt])..result[:all], result[:weight]
  end

  def test_a_program_may_kill_all_threads_though_it_defers_interrupts
    result = result_of(<<~RUBY)
      Thread.handle_interrupt(Object => :never) { Native.start(application_name: "test", server_address: "none") }
      parked = Thread.list - [Thread.current]
      # Until it has ended, a test's time at most.
      ended = parked.map { |thread| thread.kill.join(60) }.compact
      puts JSON.generate(parked: parked.size, ended: ended.size, stopped: Native.stop(5.0))
      $stdout.flush
      # Ruby's end would wait for it for ever.
      exit! if ended.size < parked.size
    RUBY
    assert_equal({ parked: 1, ended: 1, stopped: true }, result)
  end

  def test_tags_follow_fibers
    result = result_of(<<~'RUBY')
      (1..6).each { |number| eval("def part_#{number} = busy(20)") }
      samples = profiled(sample_rate: 200, wall_clock: true) do
        Native.tags_within({ "tier" => "web" }) do
          fiber = Fiber.new { part_1; Native.tags_within({ "tier" => "fiber" }) { Fiber.yield; part_2 } }
          fiber.resume
          Native.tags_within({ "step" => "one", "tier" => "db" }) { part_3 }
          fiber.resume
          part_4
          Thread.new { part_5 }.join
        end
        part_6
      end
      parts = samples.group_by { |sample| sample.functions.filter_map { |name| name[/part_(\d)\z/, 1] }.first }
      parts.delete(nil)
      puts JSON.generate(parts.transform_values { |some| some.map { |sample| sample.labels.slice("tier", "step") }.uniq })
    RUBY
    assert_equal({ "1": [{}], "2": [{ tier: "fiber" }], "3": [{ tier: "db", step: "one" }], "4": [{ tier: "web" }], "5": [{}], "6": [{}] },
                 result.sort.to_h)
  end

  def test_wrong_options_raise_and_name_what_is_allowed
    output = run_program(<<~'RUBY')
      [{ sample_rate: -1 }, { sample_rate: 100_000 }, { sample_rate: "fast" }, { upload_interval: 0 }, { server_address: "ftp://x" },
       { tags: 5 }, { tags: { 1 => "x" } }, { report_pid: "yes" }, { application_name: 5 }, { no_such_option: 1 }, { log_level: "loud" },
       { trace_id: "perhaps" }, { basic_auth_password: 5 }].each do |options|
        Native.start({ application_name: "test", server_address: "none", **options })
        puts "no error: #{options}"
      rescue ArgumentError => error
        puts error.message
      end
      p Native.running?, Native.start({ enabled: false }), Native.messages
    RUBY
    lines = output.lines(chomp: true)
    assert_empty lines.grep(/no error/)
    assert_equal %w[sample_rate sample_rate sample_rate upload_interval server_address tags tags report_pid application_name configure log_level
                    trace_id basic_auth_password], lines.first(13).map { |line| line[/\w+/] }
    assert_empty lines.first(13).reject { |line| line.include?("allowed") || line.include?("no_such_option") }, output
    assert_equal ["false", "false", '[[:info, "profiling is switched off by configuration or environment"]]'], lines.last(3)
  end

  def test_a_ruby_with_other_stacks_has_spans_and_no_profiles_and_one_warning
    result = result_of(<<~RUBY)
      Native.install_context_hooks
      Native.configure_spans(true, false)
      def Native.own_stack = [["elsewhere", 1]]
      started = Array.new(2) { Native.start({ application_name: "test", server_address: "none" }) }
      current = Spans::TRACER.in_span("goes on") { |span| Native.current_span.first == span.context.hex_span_id }
      puts JSON.generate(why: Native.supported, started: started, current: current, messages: Native.messages)
    RUBY
    assert_equal [false, false], result[:started]
    assert result[:current]
    assert_includes result[:why], "gives other stacks"
    assert_equal [["warning", "no profiles are taken, spans go on working: #{result[:why]}"]], result[:messages]
  end

  # Its handlers of SIGSEGV and SIGBUS are there for as long.
  def test_a_collection_that_compacts_is_no_library_that_replaces_handlers
    result = result_of(<<~RUBY)
      objects = Array.new(200_000) { |number| [number.to_s] }
      compact = -> { 10.times { GC.compact } }
      samples = profiled(sample_rate: 1000, wall_clock: true) { 3.times { compact.call; busy 30 } }
      puts JSON.generate(objects: objects.size, messages: Native.messages,
                         unreadable: samples.select { |sample| sample.functions == ["(unreadable stack)"] }.sum(&:weight))
    RUBY
    assert_empty result[:messages]
    assert_operator result[:unreadable], :<, 20_000_000
  end

  if RUBY_VERSION >= "3.3"
    def test_where_other_libraries_have_all_of_rubys_jobs_rings_are_read_all_the_same
      result = result_of(<<~RUBY, options: ["-W0", "-r", File.join(__dir__, "jobs.rb")])
        samples = profiled(#{ALL}) { busy 50 }
        puts JSON.generate(busy: samples.sum(&:weight), called: JOBS_CALLED.uniq)
      RUBY
      assert_operator result[:busy], :>, 30_000_000
      assert_empty result[:called]
    end
  end

  # A fault that is blocked ends the process.
  def test_where_a_thread_blocks_faults_its_stack_is_not_read
    result = result_of(<<~RUBY, options: ["-W0"])
      require "fiddle"
      Native.install_context_hooks
      Native.configure_spans(true, false)
      int, pointer = Fiddle::TYPE_INT, Fiddle::TYPE_VOIDP
      mask = Fiddle::Function.new(Fiddle::Handle::DEFAULT["pthread_sigmask"], [int, pointer, pointer], int)
      took = nil
      # A collection's sample is taken by the thread itself, outside of the handler.
      GC.disable
      samples = profiled(#{ALL}) do
        faults = [1 << (Signal.list["SEGV"] - 1), *[0] * 15].pack("Q*")
        mask.call(0, faults, nil)
        took = wall_ns { Spans::TRACER.in_span("blocked") { busy 50 } }
        mask.call(1, faults, nil)
        Spans::TRACER.in_span("read") { busy 50 }
      end
      blocked, others = samples.select { |sample| sample.labels["span_name"] }.partition { |sample| sample.labels["span_name"] == "blocked" }
      puts JSON.generate(took: took, blocked: blocked.sum(&:weight), unread: blocked.flat_map(&:functions).uniq, read: others.flat_map(&:functions).uniq)
    RUBY
    assert_equal ["(unreadable stack)"], result[:unread]
    assert_operator result[:blocked], :>, 0.8 * result[:took]
    refute_includes result[:read], "(unreadable stack)"
  end

  def test_without_its_fault_handler_no_stack_is_read_and_that_is_said
    result = result_of(<<~RUBY, options: ["-W0"])
      require "fiddle"
      Native.install_context_hooks
      Native.configure_spans(true, false)
      took = told = nil
      samples = profiled(#{ALL}) do
        # The sample of a collection has a frame that says so.
        GC.disable
        action = Fiddle::Pointer.malloc(152, Fiddle::RUBY_FREE)
        call = Fiddle::Function.new(Fiddle::Handle::DEFAULT["sigaction"], [Fiddle::TYPE_INT, Fiddle::TYPE_VOIDP, Fiddle::TYPE_VOIDP], Fiddle::TYPE_INT)
        call.call(11, nil, action)
        # As another crash reporter would: the same flags, an own handler.
        ours = action[0, 8]
        action[0, 8] = [Fiddle::Handle::DEFAULT["abort"]].pack("J")
        call.call(11, action, nil)
        told = []
        told.concat(Native.messages) and busy(10) until told.any?
        took = wall_ns { Spans::TRACER.in_span("unread") { busy 200 } }
        action[0, 8] = ours
        call.call(11, action, nil)
        # It is looked at before each drain.
        Native.flush(10.0)
        Spans::TRACER.in_span("read") { busy 50 }
      end
      unread = samples.select { |sample| sample.labels["span_name"] == "unread" }
      puts JSON.generate(unread: unread.map(&:functions).uniq, weight: unread.sum(&:weight), took: took, told: told,
                         read: samples.any? { |sample| sample.labels["span_name"] == "read" && sample.functions.include?("Object#busy") })
    RUBY
    assert_equal [["(unreadable stack)"]], result[:unread]
    assert_includes SEEN, result[:weight] / result[:took].to_f
    assert_equal 1, result[:told].size
    assert_includes result[:told].first.last, "replaced the handler of SIGSEGV"
    assert result[:read]
  end
end
