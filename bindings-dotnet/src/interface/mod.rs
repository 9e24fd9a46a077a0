//! The cold interface: start, flush, stop, settings and statistics, a few calls in a process's life.
//!
//! `Pyroscope.OpenTelemetry/Interop/Native.g.cs` is generated from this folder; a test says when it is out of date.
//! Arguments are read, one function of [`profiler`] or of [`tags`] is called, its result is passed back. No panic
//! leaves a function. Errors of the profiler are values ([`Answer`]), so that the facade can make exceptions of them.

#![expect(missing_docs, missing_debug_implementations, reason = "of what #[ffi] makes of each function")]

pub mod types;

use std::time::Duration;

use interoptopus::inventory::RustInventory;
use interoptopus::pattern::result::panic_to_result;
use interoptopus::wire::Wire;
use interoptopus::{builtins_string, builtins_wire, ffi, function};
use spanprof_core::ErrorKind;

use self::types::{Answer, Failure, Feature, MessageList, Pairs, Settings, Statistics, Status};
use crate::events::sessions;
use crate::span::tags;
use crate::symbols::code_map;
use crate::{messages, profiler};

// What `Native.g.cs` passes and is passed by value, which its generator does not compare with what the compiler makes of it.
const _: () = assert!(size_of::<Wire<Settings>>() == 16 && size_of::<Wire<Answer>>() == 16);
const _: () = assert!(size_of::<ffi::Result<Wire<Answer>, Failure>>() == 24);
const _: () = assert!(align_of::<ffi::Result<Wire<Answer>, Failure>>() == 8);
const _: () = assert!(size_of::<ffi::Result<bool, Failure>>() == 8 && size_of::<ffi::Result<u32, Failure>>() == 8);
const _: () = assert!(size_of::<ffi::Result<u64, Failure>>() == 16);
const _: () = assert!(size_of::<Feature>() == 1 && size_of::<Failure>() == 1);
const _: () = assert!(Feature::Cpu as u8 == 0 && Feature::Allocations as u8 == 1);
const _: () = assert!(Feature::Locks as u8 == 2 && Feature::Exceptions as u8 == 3 && Failure::Arguments as u8 == 0);

/// Starts the profiler. Milliseconds; never waits for the server. Nothing runs after an answer other than 0.
#[ffi]
pub fn spanprof_start(mut settings: Wire<Settings>) -> ffi::Result<Wire<Answer>, Failure> {
    panic_to_result(|| match settings.try_unwire() {
        Ok(settings) => ffi::Ok(answer(profiler::start(&settings))),
        Err(_) => ffi::Err(Failure::Arguments),
    })
}

/// Ends sampling and uploads what there is, within `timeout_ms`. True: all of it was delivered. A profiler that was
/// stopped may be started again.
#[ffi]
pub fn spanprof_stop(timeout_ms: u64) -> ffi::Result<bool, Failure> {
    panic_to_result(|| ffi::Ok(profiler::stop(Duration::from_millis(timeout_ms))))
}

/// Ends allocations, lock waits and exceptions, which no later call switches on again. To be called as the process ends,
/// before the runtime disposes of its `EventSource`s. Milliseconds; where the runtime is slow two seconds at most.
#[ffi]
pub fn spanprof_end_events() -> ffi::Result<bool, Failure> {
    panic_to_result(|| {
        sessions::end();
        ffi::Ok(true)
    })
}

/// Uploads what was sampled so far and waits for it, `timeout_ms` at most. True: all of it is settled.
#[ffi]
pub fn spanprof_flush(timeout_ms: u64) -> ffi::Result<bool, Failure> {
    panic_to_result(|| ffi::Ok(profiler::flush(Duration::from_millis(timeout_ms))))
}

/// What became of every sample: of the profiler that runs, else of the last one, else zeros.
#[ffi]
pub fn spanprof_stats() -> ffi::Result<Wire<Statistics>, Failure> {
    panic_to_result(|| ffi::Ok(Wire::from(profiler::statistics())))
}

/// What the program's logger is to be told since the last call.
#[ffi]
pub fn spanprof_take_messages() -> ffi::Result<Wire<MessageList>, Failure> {
    panic_to_result(|| ffi::Ok(Wire::from(MessageList { messages: messages::take() })))
}

/// What works, and why the rest does not.
#[ffi]
pub fn spanprof_status() -> ffi::Result<Wire<Status>, Failure> {
    panic_to_result(|| ffi::Ok(Wire::from(Status { features: profiler::status() })))
}

/// Switches a part on or off while the profiler runs (else kind 3); kind 4 says why it cannot be switched on. CPU time
/// is switched by stopping and starting, which may wait for the server, 2 s at most.
#[ffi]
pub fn spanprof_set_tracking(feature: Feature, enabled: bool) -> ffi::Result<Wire<Answer>, Failure> {
    panic_to_result(|| ffi::Ok(answer(profiler::set_tracking(feature, enabled))))
}

/// Learns which methods were compiled before the profiler was there. To be called by a finalizer alone, whose thread is the
/// one on which the runtime takes code away. Milliseconds; nothing where no profiler is attached.
#[ffi]
pub fn spanprof_catch_up() -> ffi::Result<bool, Failure> {
    panic_to_result(|| {
        code_map::catch_up();
        ffi::Ok(true)
    })
}

/// To be called each second: does what a start could not, where the runtime has let the profiler in since. True: it has, and methods that were
/// compiled before are to be told ([`spanprof_catch_up`]). A load mostly.
#[ffi]
pub fn spanprof_attach_late() -> ffi::Result<bool, Failure> {
    panic_to_result(|| ffi::Ok(profiler::attach_late()))
}

/// Whether the engine measures waits, as `wall_time` asks for.
#[ffi]
pub fn spanprof_measures_waits() -> ffi::Result<bool, Failure> {
    panic_to_result(|| ffi::Ok(spanprof_core::measures_waits()))
}

/// Nanoseconds that the calling thread waited so far, in calls that were measured.
#[ffi]
pub fn spanprof_waited_ns() -> ffi::Result<u64, Failure> {
    panic_to_result(|| ffi::Ok(spanprof_core::waited_ns()))
}

/// Measures no waits any more: one that was made to see that was not seen.
#[ffi]
pub fn spanprof_measure_no_waits() -> ffi::Result<bool, Failure> {
    panic_to_result(|| {
        profiler::measure_no_waits();
        ffi::Ok(true)
    })
}

/// The number of the tag set `within` with `tags` added, for the block's `tags`; held until [`spanprof_tag_release`].
/// 0 is the empty set, and the answer when 1,024 sets are alive.
#[ffi]
pub fn spanprof_tag_set(within: u32, mut tags: Wire<Pairs>) -> ffi::Result<u32, Failure> {
    panic_to_result(|| match tags.try_unwire() {
        Ok(tags) => ffi::Ok(tags::tag_set(within, &tags)),
        Err(_) => ffi::Err(Failure::Arguments),
    })
}

/// Ends one claim of [`spanprof_tag_set`].
#[ffi]
pub fn spanprof_tag_release(tag_set: u32) -> ffi::Result<bool, Failure> {
    panic_to_result(|| {
        tags::tag_release(tag_set);
        ffi::Ok(true)
    })
}

/// Adds the pairs to (or takes them from) the tags of the calling thread, whatever span it is in. False: no profiler runs.
#[ffi]
pub fn spanprof_thread_tags(mut tags: Wire<Pairs>, adding: bool) -> ffi::Result<bool, Failure> {
    panic_to_result(|| match tags.try_unwire() {
        Ok(tags) => ffi::Ok(tags::thread_tags(&tags, adding)),
        Err(_) => ffi::Err(Failure::Arguments),
    })
}

/// All that C# is generated from.
pub fn inventory() -> RustInventory {
    RustInventory::new()
        .register(function!(spanprof_start))
        .register(function!(spanprof_stop))
        .register(function!(spanprof_end_events))
        .register(function!(spanprof_flush))
        .register(function!(spanprof_stats))
        .register(function!(spanprof_take_messages))
        .register(function!(spanprof_status))
        .register(function!(spanprof_set_tracking))
        .register(function!(spanprof_catch_up))
        .register(function!(spanprof_attach_late))
        .register(function!(spanprof_measures_waits))
        .register(function!(spanprof_waited_ns))
        .register(function!(spanprof_measure_no_waits))
        .register(function!(spanprof_tag_set))
        .register(function!(spanprof_tag_release))
        .register(function!(spanprof_thread_tags))
        .register(builtins_string!())
        .register(builtins_wire!())
        .validate()
}

fn answer(result: Result<(), spanprof_core::Error>) -> Wire<Answer> {
    let (kind, text) = match result {
        Ok(()) => (0, String::new()),
        Err(error) => {
            let kind = match error.kind() {
                ErrorKind::InvalidConfig => 1,
                ErrorKind::AlreadyRunning => 2,
                ErrorKind::Disabled => 3,
                ErrorKind::Unsupported => 4,
                ErrorKind::System => 5,
                _ => 6,
            };
            (kind, error.message().to_owned())
        }
    };
    Wire::from(Answer { kind, text })
}
