//! The gem `pyroscope-otel`: span-aware CPU profiles of Ruby.
//!
//! `Pyroscope::Native`, below, is private; the public module `Pyroscope` is Ruby. What runs in the signal handler is
//! [`unwind`] and what it uses: [`slot`] and `shim/guard.c`. [`context`], [`span_hooks`] and [`tags`] run in the
//! program's own calls, [`events`] in the interpreter's; [`drain`] and [`names`] read what the handler wrote.
//!
//! | `Pyroscope::Native` | |
//! |---|---|
//! | `start(Hash{Symbol=>Object})` → true, false | over the environment; false: switched off, or [`supported`](selftest) says why not. ArgumentError names option, value and what is allowed; a profiler that runs is stopped first |
//! | `stop(Float seconds)` → bool | true: a profiler ran and all was sent |
//! | `flush(Float seconds)` → bool | true: the server has it |
//! | `running?` → bool | |
//! | `stats` → Hash{Symbol=>Integer, Hash, String} | tallies are `{samples:, weight:}`; of the profiler that runs, else of the last one |
//! | `messages` → [[:info or :warning, String]] | what a logger is to be told since the last call |
//! | `after_fork` → bool | in a child: whether a profiler runs now. Harmless anywhere |
//! | `environment` → [bool, String, [String]] | what the environment alone says: enabled, application name, names of tags |
//! | `install_context_hooks` → nil | any number of times; needs opentelemetry-api |
//! | `remove_hooks` → nil | the prepended methods only call super from then on |
//! | `configure_spans(bool scope_all, bool inherit_fibers)` → nil | |
//! | `span_started(span, parent_context)` → String or nil | the span id in hex if the span is one that samples carry, for its attribute; never raises |
//! | `span_finished(span)` → nil | never raises |
//! | `tag_set(Hash)` → Integer | this fiber's tags with these over them, held until `release_tags` |
//! | `tag_set_without(Hash)` → Integer | this fiber's tags without these pairs, held until `release_tags` |
//! | `release_tags(Integer)` → nil | once for each `tag_set`, when no fiber has it |
//! | `current_tags` → Integer | of the current fiber; 0: none |
//! | `current_tags=(Integer)` | follows the fiber |
//! | `add_thread_tag(Integer tid or nil, key, value)` → bool | kernel's thread id; nil: the calling thread. False: no profiler |
//! | `remove_thread_tag(Integer tid or nil, key, value)` → bool | |
//! | `check_tag_name(String option, String name)` → nil | ArgumentError if no server takes a tag of that name |
//! | `current_span` → [String, String] or nil | span and trace id that a sample of this thread would carry now |
//! | `supported` → nil or String | why this Ruby cannot be profiled |
//! | `fault_count` → Integer | walks that met memory which was not there |
//!
//! Options of `start`: application_name, server_address, basic_auth_username, basic_auth_password, tenant_id (String);
//! http_headers, tags (Hash); sample_rate (Integer); upload_interval (seconds); trace_id (:auto, true, false); log_level
//! (:info, :warning, :silent); span_names, report_pid, report_thread_id, report_thread_name, enabled, oncpu,
//! resource_labels, inherit_fibers (true, false). An absent key or nil: as the environment says, else the default.
