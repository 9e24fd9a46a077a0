# frozen_string_literal: true

require_relative "helper"
require "socket"

# What kills a process elsewhere must be harmless here.
class BadDaysTest < Minitest::Test
  def test_configure_twice
    samples = samples_of(<<~'RUBY')
      Pyroscope.configure(application_name: "first", server_address: ARGV[0])
      def before = burn_until_sampled
      before
      Pyroscope.configure(application_name: "second", server_address: ARGV[0])
      def after = burn_until_sampled
      after
    RUBY
    %w[before after].each do |name|
      assert_operator weight(samples) { |sample| sample.functions.any? { |frame| frame.end_with?("##{name}") } }, :>, 0, name
    end
  end

  def test_a_program_that_configured_more_than_once_ends
    assert_ruby(<<~'RUBY')
      require "timeout"
      children = Array.new(30) { fork { 3.times { Pyroscope.configure(application_name: "app", server_address: "none") } } }
      begin
        Timeout.timeout(60) { children.each { |child| Process.wait(child) } }
      rescue Timeout::Error
        Process.kill(:KILL, *children)
        abort "a child does not end"
      end
    RUBY
  end

  def test_configure_after_stop
    samples = samples_of(<<~'RUBY')
      2.times do
        Pyroscope.configure(application_name: "app", server_address: ARGV[0])
        burn_until_sampled
        abort "nothing was stopped" unless Pyroscope.stop
        abort "stopped twice" if Pyroscope.stop
      end
      Pyroscope.configure(application_name: "app", server_address: ARGV[0])
      def third = burn_until_sampled
      third
    RUBY
    assert_operator weight(samples) { |sample| sample.functions.any? { |frame| frame.end_with?("#third") } }, :>, 0
  end

  def test_configure_in_a_forked_child
    samples = samples_of(<<~'RUBY')
      def child = burn_until_sampled
      Pyroscope.configure(application_name: "parent", server_address: ARGV[0])
      pid = fork do
        Pyroscope.configure(application_name: "child", server_address: ARGV[0])
        child
      end
      Process.wait(pid)
      abort "the child ended with #{$?}" unless $?.success?
    RUBY
    assert_operator weight(samples) { |sample| sample.functions.any? { |frame| frame.end_with?("#child") } }, :>, 0
  end

  # At its first span it took its own profiler for its parent's, and profiled no more.
  def test_configure_in_a_forked_child_of_a_parent_that_has_stopped
    samples = samples_of(<<~'RUBY')
      def child = burn_until_sampled
      configure = -> { Pyroscope.configure(application_name: "app", server_address: ARGV[0]) }
      tracer = tracer()
      configure.call && Pyroscope.stop
      pid = fork do
        configure.call
        tracer.in_span("first") { nil }
        tracer.in_span("second") { child }
        abort "it ended" unless Pyroscope.running? && Pyroscope.stop && configure.call
      end
      Process.wait(pid)
      abort "the child ended with #{$?}" unless $?.success?
    RUBY
    assert_operator weight(samples) { |sample| sample.labels["span_name"] == "second" }, :>, 0
  end

  # The thread that starts the profiler is not in the child.
  def test_a_child_that_is_forked_while_another_thread_starts_the_profiler
    starts = {
      "configure" => 'Pyroscope.configure(application_name: "app", server_address: ARGV[0])',
      "the first span" => 'TRACER.in_span("first") { nil }',
      "configure again" => '(@other ||= Pyroscope.configure(application_name: "old", server_address: "none")) && ' \
                           'Pyroscope.configure(application_name: "app", server_address: ARGV[0])'
    }
    starts.each do |name, start|
      samples = samples_of(<<~RUBY)
        ENV["PYROSCOPE_SERVER_ADDRESS"] = ARGV[0]
        TRACER = tracer(resource: { "service.name" => "app" })
        def child = burn_until_sampled
        ARRIVED, GO_ON, PARENT = Queue.new, Queue.new, Process.pid
        Pyroscope::Native.singleton_class.prepend(Module.new do
          def start(settings)
            if Process.pid == PARENT && settings[:application_name] != "old"
              ARRIVED << true
              GO_ON.pop
            end
            super
          end
        end)
        starter = Thread.new { #{start} }
        ARRIVED.pop
        pid = fork do
          abort "none runs" unless Pyroscope.running?
          TRACER.in_span("of the child") { child }
        end
        Process.wait(pid)
        abort "the child ended with \#{$?}" unless $?.success?
        GO_ON << true
        starter.join
        abort "the parent has none" unless Pyroscope.running?
      RUBY
      assert_operator weight(samples) { |sample| sample.labels["span_name"] == "of the child" }, :>, 0, name
    end
  end

  def test_a_forked_child_and_a_daemon_go_on_by_themselves
    samples = samples_of(<<~'RUBY')
      def child = burn_until_sampled
      def daemon = burn_until_sampled
      Pyroscope.configure(application_name: "app", server_address: ARGV[0])
      Process.wait(fork { child })
      abort unless $?.success?
      reader, writer = IO.pipe
      fork do
        reader.close
        Process.daemon(true, true)
        daemon
        Pyroscope.stop
        writer.puts("done")
      end
      writer.close
      abort "the daemon said nothing" unless reader.read == "done\n"
      Process.wait
    RUBY
    %w[child daemon].each do |name|
      assert_operator weight(samples) { |sample| sample.functions.any? { |frame| frame.end_with?("##{name}") } }, :>, 0, name
    end
  end

  def test_a_tag_value_with_a_comma_or_an_equals_sign
    samples = samples_of(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: ARGV[0], tags: { all: "a=1,b=2" })
      Pyroscope.tag_wrapper({ "kind" => "x=1,y=2" }) { burn_until_sampled }
      Pyroscope._add_tags({ "thread" => "=," })
      burn_until_sampled
      Pyroscope._remove_tags({ "thread" => "=," })
    RUBY
    assert_operator weight(samples) { |sample| sample.labels["kind"] == "x=1,y=2" }, :>, 0
    assert_operator weight(samples) { |sample| sample.labels["thread"] == "=," }, :>, 0
  end

  def test_a_span_name_a_tag_and_an_application_name_that_are_not_valid_utf_8
    samples = samples_of(<<~'RUBY')
      Pyroscope.configure(application_name: "app\xFF", server_address: ARGV[0], tags: { all: "all\xFE" })
      tracer.in_span("span\xFD") { burn_until_sampled }
      tracer.in_span("span\xFD".b) { burn_until_sampled }
      Pyroscope.tag_wrapper({ "kind" => "tag\xFC", "na\xFBme" => "left out" }) { burn_until_sampled }
    RUBY
    names = samples.filter_map { |sample| sample.labels["span_name"] }
    assert_equal ["span\uFFFD"], names.uniq
    assert_includes samples.map { |sample| sample.labels["kind"] }, "tag\uFFFD"
  end

  def test_a_span_name_a_tag_and_an_application_name_that_hold_a_nul
    samples = samples_of(<<~'RUBY')
      begin
        Pyroscope.configure(application_name: "app\0", server_address: ARGV[0])
      rescue ArgumentError => error
        abort error.message unless error.message.include?("application_name")
        Pyroscope.configure(application_name: "app", server_address: ARGV[0])
      end
      tracer.in_span("span\0name") { burn_until_sampled }
      Pyroscope.tag_wrapper({ "kind" => "a\0b" }) { burn_until_sampled }
    RUBY
    assert_includes samples.map { |sample| sample.labels["span_name"] }, "span\0name"
    assert_includes samples.map { |sample| sample.labels["kind"] }, "a\0b"
  end

  def test_the_last_window_is_sent_at_exit_without_stop
    samples = samples_of(<<~'RUBY')
      Pyroscope.configure(application_name: "app", server_address: ARGV[0], upload_interval: 600)
      burn(100)
    RUBY
    assert_operator samples.sum(&:weight), :>, 60_000_000
  end

  # minitest/autorun, test-unit and Sinatra are such programs.
  def test_a_block_of_at_exit_that_was_there_before_is_profiled_and_its_forks
    Dir.mktmpdir do |folder|
      ended = run_ruby(<<~'RUBY', "file://#{folder}")
        at_exit { late }
        def child = burn_until_sampled
        def late
          burn_until_sampled
          Process.wait(fork { child })
          exit(7) if $?.success?
        end
        Pyroscope.configure(application_name: "app", server_address: ARGV[0], upload_interval: 600)
      RUBY
      assert_equal [7, ""], [ended.status.exitstatus, ended.errors]
      samples = Profile.of_folder(folder)
      %w[late child].each do |name|
        assert_operator weight(samples) { |sample| sample.functions.any? { |frame| frame.end_with?("##{name}") } }, :>, 0, name
      end
    end
  end

  # A collection during Ruby's end met a hook that was put back after Ruby had taken them all away; and Ruby waited for ever for a
  # thread of ours that was made when it had ended the others.
  def test_threads_that_stop_and_start_when_ruby_ends_them_hold_nothing_up
    said = assert_ruby(<<~'RUBY')
      configure = -> { Pyroscope.configure(application_name: "app", server_address: "none") }
      configure.call
      began = Queue.new
      Thread.new do
        began << true
        sleep
      ensure
        results = [Pyroscope.flush, Pyroscope.stop, configure.call, Pyroscope.running?]
        10.times { GC.start }
        puts results.inspect
      end
      began.pop
    RUBY
    assert_equal "[true, true, false, false]\n", said
  end

  def test_nothing_is_started_after_the_last_stop
    said = assert_ruby(<<~'RUBY')
      configure = -> { Pyroscope.configure(application_name: "app", server_address: "none") }
      configure.call
      puts [Pyroscope::Native.finish(5.0), configure.call, Process.wait2(fork { exit!(Pyroscope.running? ? 1 : 0) }).last.success?].inspect
    RUBY
    assert_equal "[true, false, true]\n", said
  end

  def test_the_last_window_is_sent_once_with_stop
    Dir.mktmpdir do |folder|
      taken = assert_ruby(<<~'RUBY', "file://#{folder}")
        Pyroscope.configure(application_name: "app", server_address: ARGV[0], upload_interval: 600)
        burn(100)
        Pyroscope.stop
        puts Pyroscope.stats[:taken][:weight]
      RUBY
      assert_operator Integer(taken), :>, 60_000_000
      assert_equal Integer(taken), Profile.of_folder(folder).sum(&:weight)
    end
  end

  def test_the_last_window_is_sent_when_a_signal_ends_the_program
    Dir.mktmpdir do |folder|
      ended = run_ruby(<<~'RUBY', "file://#{folder}")
        Pyroscope.configure(application_name: "app", server_address: ARGV[0], upload_interval: 600)
        burn(100)
        Process.kill(:TERM, Process.pid)
        sleep
      RUBY
      assert_equal Signal.list.fetch("TERM"), ended.status.termsig
      assert_operator Profile.of_folder(folder).sum(&:weight), :>, 60_000_000
    end
  end

  # What ran was in no forked child, and nobody sent its last samples.
  def test_what_interrupts_configure_leaves_no_profiler_that_nobody_looks_after
    ["Thread.current.raise(Stop)", "trap(:USR1) { raise Stop } && Process.kill(:USR1, Process.pid)"].each do |interrupt|
      samples = samples_of(<<~RUBY)
        Stop = Class.new(Exception)
        Pyroscope::Native.singleton_class.prepend(Module.new { def start(*) = super.tap { #{interrupt} } })
        begin
          Pyroscope.configure(application_name: "app", server_address: ARGV[0], upload_interval: 600)
          abort "not interrupted"
        rescue Stop
          abort "it does not run" unless Pyroscope.running?
        end
        def child = burn_until_sampled
        Process.wait(fork { Pyroscope.running? ? child : exit!(1) })
        def parent = burn_until_sampled
        parent
      RUBY
      %w[parent child].each do |name|
        assert_operator weight(samples) { |sample| sample.functions.any? { |frame| frame.end_with?("##{name}") } }, :>, 0, name
      end
    end
  end

  def test_what_interrupts_a_logger_takes_no_other_message_away
    said = assert_ruby(<<~'RUBY')
      Stop = Class.new(Exception)
      Pyroscope::Native.define_singleton_method(:messages) { said, @said = @said || [[:warning, "one"], [:warning, "two"]], []; said }
      logger = Object.new
      def logger.add(_level, text, _name) = puts(text) || (raise Stop if text == "one")
      Pyroscope.logger = logger
      begin
        Pyroscope.stats
      rescue Stop
        puts "interrupted"
      end
      Pyroscope.stats
    RUBY
    assert_equal %w[one interrupted two], said.split
  end

  # Its processor did not end what it had started.
  def test_what_interrupts_the_first_span_comes_when_the_profiler_has_started
    assert_ruby(<<~'RUBY', environment: { "PYROSCOPE_SERVER_ADDRESS" => "none" })
      Stop = Class.new(Exception)
      Pyroscope::Native.singleton_class.prepend(Module.new { def start(*) = super.tap { Thread.current.raise(Stop) } })
      processor = Pyroscope::Otel::SpanProcessor.new
      begin
        tracer(processor, resource: { "service.name" => "shop" }).in_span("first") { nil }
        abort "not interrupted"
      rescue Stop
        abort "nothing runs" unless Pyroscope.running? && Pyroscope.current_config.application_name == "shop"
      end
      processor.shutdown
      abort "it runs" if Pyroscope.running?
    RUBY
  end

  # Ruby swallows what a finalizer raises: the program went on, printed the stack and ended with 0.
  def test_a_signal_during_the_last_stop_ends_the_program
    # It takes connections and says nothing, so the stop waits.
    server = TCPServer.new("127.0.0.1", 0)
    ends = [nil, "trap(:TERM) { exit(7) }"].map do |handler|
      program = <<~RUBY
        #{handler}
        Pyroscope.configure(application_name: "app", server_address: "http://127.0.0.1:#{server.addr[1]}", upload_interval: 600)
        burn_until_sampled
        Pyroscope::Native.singleton_class.prepend(Module.new { def finish(*) = $stdout.syswrite("stopping") && super })
      RUBY
      Open3.popen3(PROGRAMS, RbConfig.ruby, "-I", LIB, "-r", WORK, "-e", program) do |_input, output, errors, ended|
        assert_equal "stopping", output.readpartial(100)
        Process.kill(:TERM, ended.pid)
        assert_empty errors.read
        [ended.value.termsig, ended.value.exitstatus]
      end
    end
    assert_equal [[Signal.list.fetch("TERM"), nil], [nil, 7]], ends
  end

  def test_stop_really_stops
    assert_ruby(<<~'RUBY')
      # Ruby keeps the native thread of one that ended for a while, for the next.
      Thread.new { nil }.join
      threads = -> { Dir.children("/proc/self/task") }
      timers = -> { File.read("/proc/self/timers").scan(/^ID:/).size }
      before = [threads.call, timers.call, Thread.list]
      Pyroscope.configure(application_name: "app", server_address: "none")
      tracer.in_span("span") { burn(50) }
      abort "no thread of ours" if (threads.call - before[0]).empty?
      abort "no timer of ours" unless timers.call > before[1]
      Pyroscope.stop
      taken = Pyroscope.stats[:taken]
      burn(100)
      abort "samples after stop" unless Pyroscope.stats[:taken] == taken
      # Who was joined is in the kernel's list until the kernel is done with it.
      left = threads.call - before[0]
      left &= threads.call until left.empty? || Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) > 20
      abort "threads: #{left}" unless left.empty?
      # And who was told to end needs the GVL for it.
      own = -> { Thread.list - before[2] }
      Thread.pass until own.call.empty? || Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) > 20
      abort "threads of Ruby's: #{own.call}" unless own.call.empty?
      abort "timers: #{timers.call}, not #{before[1]}" unless timers.call == before[1]
    RUBY
  end

  def test_a_program_with_a_dead_server_ends_by_itself
    assert_equal "done\n", assert_ruby(<<~'RUBY').lines.grep(/done/).join
      require "socket"
      server = TCPServer.new("127.0.0.1", 0)
      Pyroscope.configure(application_name: "app", server_address: "http://127.0.0.1:#{server.addr[1]}")
      server.close
      burn(20)
      puts "done"
    RUBY
  end

  # ld.so holds its list of modules meanwhile, and the function waits for the GVL.
  def test_who_lists_the_modules_by_a_function_of_rubys_holds_up_nobody
    # The child says that it measures no waits.
    assert_equal %W[started\n forked\n measured\n], assert_ruby(<<~'RUBY').lines.grep_v(/^WARN .*Waits are not measured/)
      require "fiddle"
      program = Process.pid
      ends_it = fork { sleep 60; Process.kill(:KILL, program) }
      lists, goes_on = Queue.new, Queue.new
      pointer, size, int = Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T, Fiddle::TYPE_INT
      one = Fiddle::Closure::BlockCaller.new(int, [pointer, size, pointer]) { lists << 1; goes_on.pop; 1 }
      list = Fiddle::Function.new(Fiddle.dlopen(nil)["dl_iterate_phdr"], [pointer, pointer], int)
      lister = Thread.new { list.call(one, nil) }
      lists.pop
      start = -> { Pyroscope.configure(application_name: "listed", server_address: "none", wall_time: true) || abort("no start") }
      start.call
      puts "started"
      child = fork { start.call }
      Process.wait(child)
      puts "forked" if $?.success?
      goes_on << 1
      lister.join
      tracer.in_span("waits") { sleep 0.01 until Pyroscope.stats[:waits_taken][:samples].positive? }
      puts "measured"
      Process.kill(:KILL, ends_it)
    RUBY
  end

  def test_a_bad_variable_leaves_spans_working
    said = assert_ruby(<<~'RUBY', environment: { "PYROSCOPE_SAMPLE_RATE" => "often" })
      tracer.in_span("span") { |span| puts "works" if span.context.valid? }
    RUBY
    assert_includes said, "works"
    assert_match(/no profiles are taken, spans go on working: .*PYROSCOPE_SAMPLE_RATE/, said)
  end
end
