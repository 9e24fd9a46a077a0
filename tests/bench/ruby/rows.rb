# frozen_string_literal: true

# The rows of the table: which program measures them, and when they are within their bound.
require_relative "run"
require_relative "time_rows"
require_relative "truth_rows"
require_relative "../../support/ruby/receiver"

# A row to fill: how, and whether nothing else may run meanwhile.
Planned = Struct.new(:row, :alone, :measure)

class Rows
  include TimeRows

  GROUPS = %w[truth cpu sample overhead span time memory import].freeze
  # The interpreter alone, and with its compiler.
  INTERPRETED, COMPILED = "", "YJIT"

  # `peers`: by version, Rubies with the other profilers.
  def initialize(quick, peers)
    @quick, @peers = quick, peers
  end

  def of(group) = send(group)

  private

  def quick(short, whole) = @quick ? short : whole

  def planned(what, bound, alone: true, &measure) = Planned.new(Row.new(what, bound), alone, measure)

  # A number for each mode, in their order.
  def each_mode(ruby)
    ruby.modes.keys.map { |mode| yield mode }
  end

  # Those that are sampled by CPU time, as programs are, for which there is no time in all rows.
  BY_CPU = %w[workers].freeze

  # Half of the samples in each mode.
  def truth
    rows = TruthRows::ROWS.map { |name, row| truth_row(name, row.what, BY_CPU.include?(name)) }
    rows.insert(1, truth_row("spans", "the same, sampled by CPU time, 250 Hz", true))
  end

  def truth_row(name, what, by_cpu)
    planned("truth: #{what}", "0 wrong, 0 missing", alone: false) { |ruby| truth_of(ruby, name, *(by_cpu ? ["cpu", 250] : ["wall", 1_000])) }
  end

  def truth_of(ruby, name, clock, rate)
    samples = quick(500, 5_000)
    found = each_mode(ruby) { |mode| ruby.run(mode, "truth.rb", name, "--samples", samples / ruby.modes.size, "--clock", clock, "--rate", rate) }
    judged, wrong, missing = %i[judged wrong missing].map { |key| found.sum { |record| record[key] } }
    Cell.new("#{judged}: #{wrong} wrong, #{missing} missing", judged >= samples && wrong.zero? && missing.zero?, found)
  end

  KINDS = {
    "one" => ["one thread", 100], "eight" => ["8 threads", 100], "threads_1ms" => ["threads of 1 ms, 1 kHz", 1_000],
    "threads_5ms" => ["threads of 5 ms, 1 kHz", 1_000], "threads_20ms" => ["threads of 20 ms, 1 kHz", 1_000],
    "sort" => ["Array#sort", 100], "gsub" => ["String#gsub", 100], "sha256" => ["SHA256", 100],
    "zlib" => ["zlib in two threads without the GVL", 100], "collect" => ["heavy garbage collection", 100],
    "bursts" => ["5 ms burnt, 5 ms slept", 100]
  }.freeze

  def cpu
    KINDS.map do |kind, (what, rate)|
      planned("CPU seen / burnt: #{what}", "0.97-1.03", alone: false) do |ruby|
        # Where a thread is a sample or two, chance needs more of them.
        seconds = quick(0.3, kind == "threads_1ms" ? 5.0 : 2.0)
        found = each_mode(ruby) { |mode| ruby.run(mode, "cpu.rb", kind, "--rate", rate, "--seconds", seconds) }
        ratios = found.map { |record| record[:ratio] }
        Cell.new(ratios.map { |ratio| format("%.3f", ratio) }.join(" · "), ratios.all? { |ratio| ratio.between?(0.97, 1.03) }, found)
      end
    end
  end

  def sample
    seconds = quick(1.0, 4.0)
    timed = lambda do |kind, rate, limit|
      planned("a sample of 60 frames, #{rate} Hz, #{kind}", "<= #{limit} µs") do |ruby|
        found = each_mode(ruby) { |mode| ruby.run(mode, "sample_cost.rb", kind, "--rate", rate, "--seconds", seconds) }
        texts = found.map { |record| format("%.2f (%.2f-%.2f; delivery %.2f)", *record.values_at(:ns, :low_ns, :high_ns, :delivery_ns).map { |ns| ns / 1e3 }) }
        Cell.new("#{texts.join(" · ")} µs", found.all? { |record| record[:ns] <= limit * 1_000 }, found)
      end
    end
    own = planned("the profiler's own threads, 100 Hz; reading a sample", "<= 0.1 % of a core") do |ruby|
      found = each_mode(ruby) { |mode| ruby.run(mode, "sample_cost.rb", "own", "--rate", 100, "--seconds", seconds) }
      texts = found.map { |record| format("%.3f %%; %.1f µs", record[:own_share] * 100, record[:drain_ns] / 1e3) }
      Cell.new(texts.join(" · "), found.all? { |record| record[:own_share] <= 0.001 }, found)
    end
    [timed.("warm", 250, 2.5), timed.("cold", 100, 7), own, *%w[pyroscope datadog].map { |peer| peer_row(peer) }]
  end

  def peer_row(name)
    planned("beside it #{name}: its own threads, 100 Hz", "") do |ruby|
      peer = @peers[ruby.version]
      next Cell.new("-") unless peer

      found = peer.run(INTERPRETED, "peer_cost.rb", name, "--rate", 100, "--seconds", quick(2.0, 10.0))
      Cell.new(format("%.2f %% of a core (%s)", found[:own_share] * 100, found[:version]), nil, found)
    end
  end

  def overhead
    [1, 8].product([INTERPRETED, COMPILED]).map do |threads, mode|
      what = "CPU a request, 100 Hz, 55 frames, #{threads == 1 ? "1 thread" : "#{threads} threads"}#{", YJIT" if mode == COMPILED}"
      planned(what, "<= +1 % over A/A, or not separable") { |ruby| ruby.modes.key?(mode) ? overhead_of(ruby, mode, threads) : Cell.new("no YJIT") }
    end
  end

  def overhead_of(ruby, mode, threads)
    arguments = ["--threads", threads, "--pairs", quick(4, 32), "--slice", quick(0.1, 0.2)]
    # On several processors, where threads happen to meet changes their CPU time more than the profiler does.
    pinned = system("taskset", "-c", "0", "true", err: File::NULL) ? ["taskset", "-c", "0"] : []
    record = Receiver.listen { |receiver| ruby.run(mode, "overhead.rb", *arguments, "--server", "http://#{receiver.place}", before: pinned) }
    share_cell(record, format("counted %.2f %%", record[:counted]), record[:counted])
  end

  # What pairs of slices say of a share of CPU time, against their control. Where they do not tell it from nothing, `counted` may be
  # within the bound, in percent.
  def share_cell(record, text_of_counted, counted = Float::INFINITY)
    over, control = record[:pairs], record[:control]
    # The difference to the control, whose own uncertainty counts too.
    difference = over[:mean] - control[:mean]
    half = Math.hypot(over[:half], control[:half] || Float::INFINITY)
    text = format("%+.2f %% (%+.2f to %+.2f; A/A %+.2f), ", over[:mean], over[:mean] - over[:half], over[:mean] + over[:half], control[:mean]) + text_of_counted
    is_separable = difference - half > 0
    text += ", not separable" unless is_separable
    Cell.new(text, difference + half <= 1 || (!is_separable && counted <= 1), record)
  end

  # One run has all four.
  def span
    [["attach + detach over the bare API", :attach_detach, 300, "<= +0.3 µs (3.1, YJIT: 0.55), 0 objects"],
     ["in_span with our processor over the SDK, a child", :child_span, 1_000, "<= +1 µs"],
     ["in_span with our processor over the SDK, a root, which gets the attribute", :root_span, 1_000, "<= +1 µs"],
     ["a switch of fibers", :fiber_switch, 60, "<= +60 ns"]].map do |what, kind, limit, bound|
      planned(what, bound) { |ruby| span_of(ruby, kind, limit) }
    end
  end

  def span_of(ruby, kind, limit)
    found = each_mode(ruby) { |mode| [mode, ruby.run_once(mode, "context_cost.rb", "--pairs", quick(2, 11))] }
    texts = found.map do |_, record|
      format("+%d ns (of %d; A/A %+d)", *record[kind].values_at(:added, :bare, :control).map(&:round)) +
        { attach_detach: format(", %d objects", record[:objects]),
          root_span: format(", the attribute alone %+d ns", record[:root_span][:attribute].round) }.fetch(kind, "")
    end
    good = found.all? do |mode, record|
      most = kind == :attach_detach && ruby.version == "3.1" && mode == COMPILED ? 550 : limit
      record[kind][:added] <= most && (kind != :attach_detach || record[:objects].zero?)
    end
    Cell.new(texts.join(" · "), good, found.to_h)
  end

  def memory
    [["names", quick(50_000, 1_000_000), "with distinct names"], ["elsewhere", quick(10_000, 100_000), "that another thread ends"]].map do |kind, spans, what|
      planned("memory over the SDK after #{spans.to_s.gsub(/\B(?=(\d{3})+$)/, ",")} spans #{what}", "<= +20 MiB, flat", alone: false) do |ruby|
        bare, ours = %w[nothing us].map { |with| ruby.run(INTERPRETED, "memory.rb", kind, "--with", with, "--spans", spans) }
        over = %i[half all].to_h { |mark| [mark, ours[mark] - bare[mark]] }
        # By what it grows while as many spans again are made.
        good = over[:all] <= 20 && over[:all] - over[:half] <= 2
        Cell.new(format("%+.1f MiB (at half %+.1f)", over[:all], over[:half]), good, { bare: bare, ours: ours })
      end
    end
  end

  def import
    [planned("require + configure, a fresh interpreter", "<= +6 MiB, <= 3 threads") do |ruby|
      found = ruby.run(INTERPRETED, "import_cost.rb", "--rounds", quick(2, 11))
      text = format("%.1f ms, %.1f ms of CPU, %+.1f MiB, %d threads", *found.values_at(:wall_ms, :cpu_ms, :mib, :threads))
      Cell.new(text, found[:mib] <= 6 && found[:threads] <= 3, found)
    end]
  end
end
