# frozen_string_literal: true

# The rows on where the time of spans goes: how much of it is found, and what that costs.
module TimeRows
  # By number of flows: processes, the seconds that a flow lasts and those of an await. Some hundred suspensions a second become
  # samples, so where there are no more each is one; else chance is as much as of so many samples, of which each process makes its
  # own.
  SIZES = { 10 => [1, 12, 0.25], 100 => [1, 25, 2.5], 1_000 => [3, 30, 12], 10_000 => [6, 30, 12] }.freeze
  # A way that waits in none of its states.
  RUNS = /\Acpu_/
  NOT_WAITED = %w[gc run_queue].freeze

  # What is found of what there was, in several processes, and the standard error by which these differ, where they are many.
  Share = Struct.new(:ratio, :error) do
    def self.of(parts)
      ratios = parts.map { |found, there| found.to_f / there }
      mean = ratios.sum / ratios.size
      error = Math.sqrt(ratios.sum { |ratio| (ratio - mean)**2 } / (ratios.size - 1) / ratios.size) if ratios.size > 2
      new(parts.sum(&:first).to_f / parts.sum(&:last), error)
    end

    def good? = ratio.between?(0.97, 1.03)
    def to_s = format("%.3f", ratio) + (error ? format(" ± %.3f", error) : "")
  end

  private

  def time = [known_waits, closure, wait_kinds, *flows, *services]

  def known_waits
    planned("waits: seen of known ones, by way", "0.97-1.03") do |ruby|
      found = quick(1, 2).times.map { ruby.run(Rows::INTERPRETED, "../../truth/ruby/waits.rb") }
      shares = shares_of_ways(found) { |sample| !NOT_WAITED.include?(sample[:state]) }
      # What a way needs beside the wait that it is of takes little: to start the thread that ends it. Who wants the GVL waits for
      # something else before.
      kinds = shares_of_ways(found) { |sample| sample[:span].start_with?(sample[:state]) }.reject { |way, _| way.start_with?("gvl_") }
      (way, worst), (_, best), least = *shares.minmax_by(&:last), kinds.values.min
      text = format("%.3f (%s) to %.3f of %d ways, of their kind at least %.2f", worst, way, best, shares.size, least)
      Cell.new(text, worst >= 0.97 && best <= 1.03 && least >= 0.9, { seen: shares, of_kind: kinds })
    end
  end

  # By way, what those samples have of how long its thread did not run.
  def shares_of_ways(found, &)
    samples = found.flat_map { |record| record[:seen] }.select(&)
    found.first[:taken].keys.grep_v(RUNS).to_h do |way|
      away = found.sum { |record| record[:taken][way].then { |wall, cpu| wall - cpu } }
      [way, samples.sum { |sample| sample[:span] == way.name ? sample[:seconds] : 0 } / away]
    end
  end

  def closure
    planned("waits + CPU time + run queue of spans of four threads", "0.97-1.03") do |ruby|
      record = ruby.run(Rows::INTERPRETED, "closure.rb", "--seconds", quick(2, 60))
      share = Share.of([[record[:found_ns].values.sum, record[:wall_ns]]])
      Cell.new(format("%s of wall, %.3f of it queued", share, record[:delay_ns].to_f / record[:wall_ns]), share.good?, record)
    end
  end

  def wait_kinds
    timed("waits of 0.1 to 5 ms and the GVL after them: profile / measured, by kind", "0.97-1.03, >= 3,000 samples") do |ruby|
      found = run_several(ruby, quick(2, 16), "wait_kinds.rb", "--seconds", quick(1, 30))
      shares, alone = %i[found_ns alone_ns].map do |sum|
        found.first[:measured_ns].keys.to_h { |kind| [kind, Share.of(found.map { |record| [record[sum][kind], record[:measured_ns][kind]] })] }
      end
      samples = found.sum { |record| record[:samples] }
      text = "#{shares.map { |kind, share| "#{kind} #{share}" }.join(", ")}; #{samples} samples"
      numbers = { samples: samples, kinds: shares.transform_values(&:to_h), without_gvl: alone.transform_values(&:to_h) }
      Cell.new(text, shares.values.all?(&:good?) && samples >= 3_000, numbers)
    end
  end

  def flows
    sums = timed("awaited + CPU time + waits of spans of fibers of Async, by fibers at once", "0.97-1.03") do |ruby|
      found = measure_flows(ruby)
      shares = found.transform_values { |of| Share.of(of.map { |record| record.values_at(:found_ns, :wall_ns) }) }
      # What the profiler says that it had no room for.
      lost = found.transform_values { |of| of.sum { |record| record[:lost_ns] }.to_f / of.sum { |record| record[:wall_ns] } }
      texts = shares.map do |number, share|
        "#{number.to_s.sub(/\B(?=\d{3}\z)/, ",")}: #{share}#{format(" (%.3f lost)", lost[number]) if lost[number] >= 0.0005}"
      end
      Cell.new(texts.join(", "), shares.values.all?(&:good?), { shares: shares.transform_values(&:to_h), lost: lost })
    end
    chains = timed("stacks of fibers that wait, from the leaf to the handler", "0 wrong of >= 5,000 samples") do |ruby|
      found = @flows&.fetch(ruby.version, nil)&.values.to_a.flatten
      samples, wrong = %i[awaits wrong].map { |key| found.sum { |record| record[key] } }
      texts = found.flat_map { |record| record[:texts] }.first(20)
      Cell.new("#{samples}: #{wrong} wrong", samples >= 5_000 && wrong.zero?, { samples: samples, wrong: wrong, texts: texts })
    end
    [sums, chains]
  end

  # What the programs print, by number of flows. All sizes at once, which leave a processor idle; one run has both rows.
  def measure_flows(ruby)
    (@flows ||= {})[ruby.version] = at_once(SIZES) do |number, (processes, seconds, mean)|
      arguments = ["--flows", number, "--seconds", quick([seconds, 2.0].min, seconds), "--mean", quick([mean, 0.25].min, mean)]
      [number, run_several(ruby, quick(1, processes), "flows.rb", *arguments)]
    end.to_h
  end

  # So many processes of a program at once: each has its own number of samples a second.
  def run_several(ruby, processes, script, *arguments)
    at_once(1..processes) { ruby.run(Rows::INTERPRETED, script, *arguments) }
  end

  # What the block makes of each, in a thread of its own.
  def at_once(items)
    threads = items.map do |item|
      Thread.new do
        Thread.current.report_on_exception = false
        yield item
      end
    end
    threads.map(&:value)
  end

  # On the Rubies for which the Gemfile has a database.
  def services
    { "threads" => "8 threads", "fibers" => "8 fibers of one loop" }.map do |kind, what|
      timed("CPU a request, wall_time on over off, #{what}", "<= +1 % over A/A") { |ruby| service(ruby, kind) }
    end
  end

  def service(ruby, kind)
    arguments = [kind, "--pairs", quick(4, 30), "--requests", quick(80, 3_200)]
    record = Receiver.listen { |receiver| ruby.run(Rows::INTERPRETED, "web_cost.rb", *arguments, "--server", "http://#{receiver.place}") }
    on, off = record.values_at(:on, :off)
    share_cell(record, format("%.0f samples/s more, counted %+.2f %%", on[:samples_a_second] - off[:samples_a_second], on[:counted] - off[:counted]))
  end

  # What is measured where there is time for it.
  def timed(what, bound, &measure)
    planned(what, bound) { |ruby| ruby.version >= "3.4" ? measure.call(ruby) : Cell.new("-") }
  end
end
