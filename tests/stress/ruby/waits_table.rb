# frozen_string_literal: true

# What samples of waits.rb can be: who calls whom, in which span, and in which wait.
module WaitsTable
  # The span that enter_X opens, and in which way_X and way_X__part are.
  SPAN = /\A(?:way|enter)_(.+?)(?:__\w+)?\z/
  OWN = /(?:\A|[.#\s])((?:way|enter|outside|handler)_\w+)\z/
  # Ways that a worker does, each with the rounds of a span and how often it is chosen, and those of the main thread alone.
  WORKERS = {
    sleep: [40, 6], woken: [20, 3], mutex: [30, 4], condition: [30, 4], monitor: [20, 4], queue: [60, 4], narrow_queue: [30, 3],
    pipe: [40, 4], full_pipe: [1, 2], sockets: [30, 4], server: [1, 1], file: [1, 1], file_lock: [1, 1], join: [10, 2], names: [8, 1],
    attached: [10, 2], module: [1, 3], outer: [8, 4], timeout: [20, 4], interrupted: [20, 4], kills: [8, 2], garbage: [10, 1],
    fibers: [10, 4], enumerator: [10, 2], scheduler: [10, 3], child: [1, 1], fork: [1, 1]
  }.freeze
  MAIN = WORKERS.merge(signals: [20, 12]).freeze
  # Beside what outside_works enters: who calls a function, nil if a thread or a fiber begins with it.
  CALLERS = {
    enter_sleep: %i[outside_works way_outer], enter_queue: %i[outside_works way_inner],
    enter_inner: %i[way_outer way_inner], enter_raises: %i[way_outer], enter_throws: %i[way_outer], enter_leaves: %i[way_outer],
    enter_attached__there: %i[outside_attaches], enter_killed: [nil], enter_fiber: [nil], enter_loop: [nil],
    enter_scheduled_sleep: [nil], enter_scheduled_queue: [nil], enter_scheduled_read: [nil], enter_scheduled_limit: [nil],
    enter_child_sleep: %i[way_fork__profiled], way_fork__child: %i[way_fork__one], way_fork__profiled: %i[way_fork__one],
    way_attached__there: %i[enter_attached__there],
    outside_waits: %i[outside_works], outside_works: [nil], outside_partner: [nil], outside_ends: [nil], outside_attaches: [nil],
    outside_loop: [nil],
    outside_enumerates: [nil]
  }.freeze
  SPANS = [*MAIN.keys, *CALLERS.keys.filter_map { |name| name[/\Aenter_(?!.*__)(.+)/, 1]&.to_sym }].uniq.freeze
  # The thread that does something in a span which is another one's.
  CONCURRENT = :outside_attaches
  # Where a forked child is still in the span of its parent, which is not its own.
  IN_PARENTS_SPAN = :way_fork__profiled
  PARENTS_SPAN = "fork"

  # Waits as state, call and innermost method.
  SLEEP = ["sleep pthread_cond_timedwait sleep"].freeze
  MUTEX = ["lock pthread_cond_wait synchronize"].freeze
  POP = ["lock pthread_cond_wait pop"].freeze
  CONDITION = ["lock pthread_cond_wait sleep", "lock pthread_cond_timedwait sleep"].freeze
  JOIN = ["lock pthread_cond_wait join", "lock pthread_cond_wait value"].freeze
  CHILD = %w[wait system ` popen].flat_map { |method| ["child waitpid #{method}", "child pthread_cond_wait #{method}"] }.freeze
  AWAIT = ["await (fiber waits) yield", "await (fiber waits) transfer", "await (fiber waits) io_wait"].freeze
  # What a function waits for; those that are not here sleep.
  WAITS = {
    way_mutex: MUTEX, way_condition: CONDITION, way_queue: POP,
    # After a wait for a condition that nobody signalled in time, the partner is still in the monitor.
    way_monitor: CONDITION + MUTEX + ["lock pthread_cond_wait enter"],
    way_narrow_queue: ["lock pthread_cond_wait push"],
    way_pipe: ["io poll readpartial", "io read readpartial", "io write write"],
    way_full_pipe: ["io poll write", "io write write"],
    way_sockets: ["io send send", "io recvfrom recv", "io poll recv", "io poll wait_readable", "io select select"],
    way_server: ["io accept4 accept", "io connect initialize", "io poll accept", "io poll initialize", "lock pthread_cond_wait addr",
                 "name getnameinfo addr"],
    way_file: ["io open64 initialize", "io write fsync", "io write fdatasync", "io fsync fsync", "io fdatasync fdatasync"],
    way_file_lock: ["io open64 initialize", "lock flock flock", "lock pthread_cond_wait close"], way_join: JOIN, way_attached: JOIN,
    way_scheduler: JOIN, way_kills: SLEEP + JOIN, way_timeout: SLEEP + JOIN,
    way_names: [
      "name pthread_cond_wait getaddrinfo", "name pthread_cond_wait getnameinfo", "name getaddrinfo getaddrinfo", "name getnameinfo getnameinfo",
      "name getnameinfo getaddrinfo"
    ],
    way_module: ["sleep nanosleep call", "io poll call", "lock sem_timedwait call"], way_raises: SLEEP + MUTEX,
    way_timeout__deeper: CONDITION + ["io poll wait_readable"], way_interrupted: POP,
    way_interrupted__inside: SLEEP + MUTEX, way_killed: SLEEP + POP, way_signals__reads: ["io poll wait_readable"],
    way_fiber: SLEEP + AWAIT, way_scheduled_sleep: AWAIT, way_scheduled_queue: AWAIT + ["io write io_write"],
    way_scheduled_read: AWAIT + ["io read io_read", "io read readpartial"], way_scheduled_limit: AWAIT,
    way_loop: ["io select select", "io epoll_pwait2 select", "io read read_nonblock"],
    way_child: [
      *CHILD, "lock pthread_cond_wait popen", "child read system", "child read `",
      "child poll `", "io read popen", "io poll popen", "io read spawn", "io read read", "io poll read", "io writev write"
    ],
    way_fork: [], way_fork__one: CHILD + ["io poll wait_readable", "lock pthread_join _fork", "lock pthread_join fork", "lock pthread_rwlock_wrlock _fork"],
    way_fork__profiled: ["lock pthread_cond_timedwait after_fork"]
  }.freeze
  # By these a thread of Ruby's wakes another one, or takes a lock of Ruby's own, wherever it is. Before 3.3 it yields as it does so, and
  # one of those that wait for a condition waits for the pipe of signals instead, and reads it.
  BEFORE_3_3 = RUBY_VERSION < "3.3"
  # Whoever has files closes and looks for some.
  NAMES = %w[close fclose fopen64 stat64 lstat64 fstatat64 __xstat64 __lxstat64 __fxstatat64 statx access].freeze
  ANYWHERE = ["write", "pthread_mutex_lock", *NAMES, *(%w[sched_yield read] if BEFORE_3_3)].freeze
  PIPE = %w[pthread_cond_wait pthread_cond_timedwait].freeze

  module_function

  def callers(name)
    CALLERS.fetch(name) do
      case name
      when /\Aenter_/ then %i[outside_works]
      when /\Away_(.+?)__/ then [:"way_#{$1}"]
      when /\Away_(.+)/ then [:"enter_#{$1}"]
      when /\Aoutside_/ then %i[outside_partner]
      end
    end
  end

  # The spans in which a sample can be whose own functions are these, innermost first; nil: none.
  def spans(own)
    name, *below = own
    case name
    when nil, /\Aoutside_/ then [nil]
    when /\Away_/ then [name[SPAN, 1]]
    when /\Aenter_/ then [name[SPAN, 1], *spans(below)]
    # A signal or a collection came in what is below.
    else spans(below)
    end
  end

  # Whether a function of that name waits so.
  def waits?(name, state, leaf, method)
    return leaf == "(waits for the GVL)" if state == "gvl"

    calls = leaf.end_with?("poll") ? ["poll", *(PIPE if BEFORE_3_3)] : [leaf]
    ANYWHERE.include?(leaf) || calls.any? { |call| WAITS.fetch(name, SLEEP).include?("#{state} #{call} #{method}") }
  end
end
