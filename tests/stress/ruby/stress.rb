# frozen_string_literal: true

# stress.rb SECONDS [RATE [wall]]: does all of stress_work.rb in three threads while it is profiled, within spans; prints as JSON
# what the profile holds, and what in it cannot be: names of no method, and calls that nobody makes. By wall time a thread is
# interrupted RATE times a second, whatever the kernel's tick.
require_relative "../../truth/ruby/spans"
require_relative "stress_work"

SECONDS = Float(ARGV.fetch(0))
RATE = Integer(ARGV.fetch(1, 1000))
BY_WALL_TIME = ARGV[2] == "wall"
Warning[:experimental] = false
trap(:USR1) { [1].each { |number| number + 1 } }
Native.install_context_hooks
Native.configure_spans(true, false)

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

# Whether there is such a method, as a label says it: [block in ]Class#name, Class.name, <main> or what a file's top is.
def exists?(label)
  name = label.sub(/\A(?:(?:block|rescue|ensure)(?: \(\d+ levels\))? in )+/, "")
  return true if name.match?(/\A[(<]/) || name.match?(/\A#<\w+>[.#]s\d_\d\z/)
  # The interpreter's own object, by which it makes procs before 3.4.
  return true if name.match?(/\A#<Class>\.(proc|lambda)\z/)

  owner, separator, method = name.rpartition(/[#.]/)
  return method.match?(/\As\d_\d\z/) if owner.empty? || owner.start_with?("#<")

  const = owner.split("::").reduce(Object) { |scope, part| scope.const_get(part) }
  const = const.singleton_class if separator == "."
  # A function of a module is written as its method.
  [const, const.singleton_class].any? { |each| each.method_defined?(method) || each.private_method_defined?(method) }
rescue NameError
  false
end

# What a function is called beyond the bound of a window's: it may be any.
UNNAMED = :"(too many functions)"

def own(label) = label == UNNAMED.name ? UNNAMED : label[/[#.]?(s\d_\d)\z/, 1]&.to_sym

rounds = Hash.new(0)
samples = profiled(sample_rate: RATE, upload_interval: 2, wall_clock: BY_WALL_TIME) do
  ended = now + SECONDS
  others = 2.times.map do
    Thread.new do
      while now < ended
        kind = (0..7).to_a.-(StressWork::ALONE).sample
        Spans::TRACER.in_span("k#{kind}") { StressWork.run(kind) }
        rounds[kind] += 1
      end
    end
  end
  while now < ended
    kind = rand(9)
    kind = rand(9) if StressWork::ALONE.include?(kind) && rand(3).positive?
    Spans::TRACER.in_span("k#{kind}") { StressWork.run(kind) }
    rounds[kind] += 1
  end
  others.each(&:join)
end

odd_names = Hash.new(0)
odd_calls = Hash.new(0)
odd_spans = Hash.new(0)
known = {}
samples.each do |sample|
  sample.frames.each do |frame|
    label = frame.first
    odd_names[[label, sample.frames]] += 1 unless known.fetch(label) { known[label] = exists?(label) }
  end
  own = sample.functions.filter_map { |label| own(label) }
  own.each_cons(2) do |callee, caller|
    next if callee == caller || callee == UNNAMED || caller == UNNAMED || StressWork::CALLERS[callee]&.include?(caller)

    odd_calls["#{callee} from #{caller} of #{sample.functions.reverse.join(";")}"] += 1
  end
  name = sample.labels["span_name"]
  odd_spans["#{own.last} in #{name}"] += 1 if name && own.any? && own.last.end_with?("_0") && own.last[1] != name[1]
end
stats = Native.stats
# YJIT of 3.1 counts a frame an instant before it fills it, see docs/ruby/limits.md.
fills_late = RUBY_VERSION < "3.2" && defined?(RubyVM::YJIT) && RubyVM::YJIT.enabled?
puts JSON.generate(
  odd: [odd_names, odd_calls, odd_spans].sum { |each| each.values.sum },
  odd_allowed: fills_late && odd_spans.empty? ? 1 + stats[:taken][:samples] / 100_000 : 0,
  samples: samples.size, taken: stats[:taken][:samples], uploaded: stats[:uploaded][:samples], dropped: stats[:dropped_ring][:samples],
  unreadable: stats[:stacks_unreadable], unresolved: stats[:frames_unresolved], rounds: rounds.values.sum,
  unreadable_frames: samples.count { |sample| sample.functions.include?("(unreadable frame)") },
  odd_names: odd_names.first(3), odd_calls: odd_calls.first(8), odd_spans: odd_spans.first(8), handler_ns: stats[:handler_ns]
)
