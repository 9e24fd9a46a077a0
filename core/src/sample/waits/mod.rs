//! Waits: how long a thread was in a call of libc that can wait, and where, measured on that very thread.
//!
//! [`modules`] puts wrappers into the slots by which the modules of the process call libc (`calls.c`): clock, call, clock. A call
//! of 2 µs or more is a wait. Some of them become samples, there and then, by the thread itself: with its span, its stack and what
//! the call was. No signal is sent, no other thread is looked at, and a thread that waits is not woken.
//!
//! What runs here runs within a call that the program makes, maybe in a signal handler of its own, maybe with a lock of its
//! allocator's held. So it obeys the rules of `sample/handler.rs`: no allocation, no lock (one is tried), no panic.

mod block;
pub(crate) mod claim;
pub(crate) mod fates;
pub(crate) mod flow;
mod loader;
mod modules;
pub(crate) mod own_record;
mod real;
pub(crate) mod suspensions;
mod taking;
pub(crate) mod times;
pub(crate) mod wrappers;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use self::block::{ASKED_NS, Block, Call, LIKELY_NS, LONG_NS, MOST_OWED_NS, OWNER, Pending};
use self::fates::Fate;
pub(crate) use self::loader::look as look_at_loader;
pub(crate) use self::modules::{lock, take_refused};
use self::taking::{Sampled, Wait};
use super::handler::{self, WAKE};
use super::record::{self, ThreadRecord};
use super::runtime::{LockWait, WaitFrame};
use super::threads::{self, Owner};
use crate::os::{clock, switches};
use crate::profile_type::ProfileTypeId;
use crate::sample::frames::FrameId;
use crate::stats::Tally;
use crate::wait_state::State;

/// Calls that took less are none: nobody was switched out for them.
const SHORTEST_NS: u64 = 2_000;
/// What it takes to deliver a signal, beside its handler.
const DELIVERY_NS: u64 = 2_000;
/// The mean of the exponential distribution that decides which waits become samples: a thread that waits has this often a
/// sample, and each wait that is long beside it is one.
const LEAST_MEAN_NS: u64 = 1_000_000;
const MOST_MEAN_NS: u64 = 10_000_000_000_000;
/// Beside which every wait is long. It is never steered.
const MEAN_OF_EACH_NS: u64 = 1;
/// Samples of waits a second, of the whole process, that are not to be passed for long. Each costs some five microseconds, its share of
/// the drain and of the upload included: a thousand of them cost a web service 1.5 % of its CPU time.
const SAMPLES_A_SECOND: u64 = 100;
/// So many more may come at first, and after a quiet time.
const SAMPLES_AHEAD: u64 = 1_000;
/// How much the mean grows at a tick, at most.
const MOST_STEP: u64 = 8;
static MEAN_NS: AtomicU64 = AtomicU64::new(LEAST_MEAN_NS);
/// The profile type that they have there.
static PROFILE_TYPE: AtomicU64 = AtomicU64::new(0);
/// Samples since the mean was steered, and when that was.
static SAMPLED: AtomicU64 = AtomicU64::new(0);
static STEERED_NS: AtomicU64 = AtomicU64::new(0);
/// What the kernel needs to tell of a timer.
static SIGNAL_ROOM: AtomicU64 = AtomicU64::new(SIGNAL_BYTES);
/// Whether the kernel counts how often a thread gives its processor away: not each does.
static COUNTS_SWITCHES: AtomicBool = AtomicBool::new(false);
static BEGAN_PENDING: AtomicBool = AtomicBool::new(false);
/// When it began.
static STARTED_NS: AtomicU64 = AtomicU64::new(0);
/// So long it may last until a wait can be seen.
const MOST_PENDING_NS: u64 = 10_000_000_000;
/// No more often: what came between two wakes of the profiler's thread says little.
const STEERING_NS: u64 = 50_000_000;
/// What the mean was then: many flows at one instant make it grow meanwhile.
static STEERED_MEAN_NS: AtomicU64 = AtomicU64::new(LEAST_MEAN_NS);
/// Samples that may still come before the mean grows.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Frame ids of calls that waited: the highest but the core's other ones. The first are waits for an interpreter's lock, the others
/// are numbers of functions.
pub(crate) const FIRST_FRAME: FrameId = u64::MAX - 4_095;
const GIL: u16 = 0;
const GVL: u16 = 1;
const FIRST_FUNCTION: u16 = 2;

/// The function that a frame id of a wait means; `None` for every other frame.
pub fn function_of(id: FrameId) -> Option<&'static str> {
    match u16::try_from(id.checked_sub(FIRST_FRAME)?).ok()? {
        GIL => Some("(waits for the GIL)"),
        GVL => Some("(waits for the GVL)"),
        function => modules::name(usize::from(function - FIRST_FUNCTION)),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "an identifier of eight bits was stored")]
fn profile_type() -> ProfileTypeId {
    ProfileTypeId(PROFILE_TYPE.load(Ordering::Relaxed) as u8)
}

/// Measures waits from now on, for a profiler whose samples of them have this type. Tells how many slots call us; 0: this
/// process has none that may be changed, or this processor is not known. `each`: they become samples, all of them.
pub(crate) fn start(owner: Owner, profile_type: ProfileTypeId, each: bool) -> usize {
    PROFILE_TYPE.store(u64::from(profile_type.0), Ordering::Relaxed);
    set_mean(if each { MEAN_OF_EACH_NS } else { LEAST_MEAN_NS });
    SAMPLED.store(0, Ordering::Relaxed);
    LEFT.store(SAMPLES_AHEAD, Ordering::Relaxed);
    let now = clock::monotonic_ns();
    STEERED_NS.store(now, Ordering::Relaxed);
    STARTED_NS.store(now, Ordering::Relaxed);
    times::start();
    OWNER.store(owner, Ordering::Release);
    forget_debt();
    COUNTS_SWITCHES.store(switches::count_waits(), Ordering::Relaxed);
    // SAFETY: may be called at any time.
    let signal = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) }.max(SIGNAL_BYTES);
    SIGNAL_ROOM.store(signal, Ordering::Relaxed);
    let slots = modules::install(SHORTEST_NS, on_wait, on_unlock);
    BEGAN_PENDING.store(modules::is_pending(), Ordering::Relaxed);
    slots
}

/// Why [`start`] found none.
pub(crate) fn why_none() -> &'static str {
    if loader::is_stuck() {
        "ld.so's list of modules is not to be had, as in a child that was forked while another thread opened one"
    } else {
        "no call of libc can be seen in this process"
    }
}

/// Ends it, if it is this profiler's. Threads that wait come back through the wrappers, which measure nothing any more.
pub(crate) fn stop(owner: Owner) {
    if OWNER.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        modules::uninstall();
    }
}

fn forget_debt() {
    if let Some(block) = wrappers::own_block() {
        // SAFETY: the calling thread's own block.
        unsafe { (*block).forget_debt() };
    }
}

/// In a forked child: nothing is measured until a profiler starts.
pub(crate) fn forget() {
    OWNER.store(0, Ordering::Relaxed);
    flow::begin_anew();
    forget_debt();
    modules::forget();
}

/// On each tick of the profiler's thread: modules that came, and how many waits become samples. False: since the start none could be seen.
pub(crate) fn tick(owner: Owner) -> bool {
    if OWNER.load(Ordering::Acquire) != owner {
        return true;
    }
    modules::rescan();
    steer();
    !modules::is_pending() || clock::monotonic_ns().saturating_sub(STARTED_NS.load(Ordering::Relaxed)) < MOST_PENDING_NS
}

fn steer() {
    if MEAN_NS.load(Ordering::Relaxed) == MEAN_OF_EACH_NS {
        return;
    }
    let now = clock::monotonic_ns();
    let since = now.saturating_sub(STEERED_NS.load(Ordering::Relaxed));
    if since < STEERING_NS {
        return;
    }
    STEERED_NS.store(now, Ordering::Relaxed);
    let sampled = SAMPLED.swap(0, Ordering::Relaxed);
    let a_second = sampled.saturating_mul(1_000_000_000) / since;
    let gained = since.saturating_mul(SAMPLES_A_SECOND) / 1_000_000_000;
    let left = (LEFT.load(Ordering::Relaxed) + gained).saturating_sub(sampled).min(SAMPLES_AHEAD);
    LEFT.store(left, Ordering::Relaxed);
    set_mean(next_mean(MEAN_NS.load(Ordering::Relaxed), STEERED_MEAN_NS.load(Ordering::Relaxed), a_second, left > 0));
}

/// It follows from the past alone, so no sum is biased by it.
fn next_mean(mean: u64, steered: u64, a_second: u64, may_come: bool) -> u64 {
    let next = match a_second {
        many if many > SAMPLES_A_SECOND && may_come => mean,
        // Most of them came while it was lower: a step up from where it is now would make a few samples stand for nearly all.
        many if many > SAMPLES_A_SECOND => mean.max(steered * many.div_ceil(SAMPLES_A_SECOND).min(MOST_STEP)),
        few if few < SAMPLES_A_SECOND / 2 => mean / 2,
        _ => mean,
    };
    next.clamp(LEAST_MEAN_NS, MOST_MEAN_NS)
}

fn set_mean(mean: u64) {
    MEAN_NS.store(mean, Ordering::Relaxed);
    STEERED_MEAN_NS.store(mean, Ordering::Relaxed);
}

/// A profiler begins to count.
pub(crate) fn forget_counts() {
    fates::clear();
}

/// Whether none could be seen at the start, as a thread of the program asked ld.so for modules: from a later tick on they are.
pub fn began_pending() -> bool {
    BEGAN_PENDING.load(Ordering::Relaxed)
}

/// Whether waits are measured now.
pub fn measures_waits() -> bool {
    OWNER.load(Ordering::Acquire) != 0
}

/// Where it is noted for the calling thread when its last wait in `poll`, `select` or `epoll_wait` began and when it ended, by
/// CLOCK_MONOTONIC; zeros before the first. There as long as the thread is; null where no waits can be measured.
pub fn own_poll() -> *const [u64; 2] {
    // SAFETY: a field of the calling thread's own block.
    wrappers::own_block().map_or(std::ptr::null(), |block| unsafe { &raw const (*block).polled })
}

/// A call that took its time has returned.
///
/// Calls may be CPU time as a whole, as a `stat` of what is in memory, and lose the processor meanwhile: who never gave it away waited for
/// nothing, and what it lost is time in the run queue, which the thread's next sample claims. So the kernel is asked how often the thread gave
/// it away: 0.2 µs, a system call, at each long call, at each for a file or a name of a tenth of a millisecond, and for each millisecond that
/// shorter ones of these are told to have waited. Where that shows that a call that is likely a wait was none it is asked at each such call for
/// a while: else a wait that comes before it would have to stand for both. When it is asked does not depend on what the timer tells, so neither of
/// the two ways in which CPU time is taken off has the other's.
///
/// A handler of the program's may end the thread within this, which unwinds it: nothing here is held for anybody else, but for the registry's lock,
/// within which no handler runs.
extern "C-unwind" fn on_wait(block: *mut Block, call: *const Call) {
    // SAFETY: this thread's own block; a signal's handler that also waits comes and goes within.
    let block = unsafe { &mut *block };
    // SAFETY: valid while this runs.
    let call = unsafe { &*call };
    let Some(state) = State::of(call.state.into()) else { return };
    let is_long = call.took_ns >= LONG_NS;
    let is_likely = call.took_ns >= LIKELY_NS;
    let is_of_file = matches!(state, State::Io | State::Name);
    let ended_ns = call.ended_ns;
    if call.polls != 0 {
        block.polled = [ended_ns.saturating_sub(call.took_ns), ended_ns];
    }
    // Who yields is not counted as one who gave its processor away.
    let is_counted = is_likely && state != State::RunQueue;
    let asks = is_long
        || is_of_file && (call.took_ns >= ASKED_NS || block.tells_much(call.took_ns))
        || is_counted && block.is_careful();
    if is_counted && !asks {
        block.skip();
    }
    let is_known = is_likely && asks;
    let waited = !asks || block.waited(times_given_away(), is_counted);
    // What a call within this one was found to have waited this one may have: a sleep that a signal ended whose handler waited too.
    let waited_within = block.waited_at_ns >= ended_ns.saturating_sub(call.took_ns);
    if asks && waited {
        block.waited_at_ns = ended_ns;
    }
    if !waited && !waited_within && !matches!(state, State::Lock | State::RunQueue) {
        (block.since_ns, block.since_cpu_ns) = (0, 0);
        if is_long {
            block.expect_preemption();
        }
        return;
    }
    // A record that the thread lost meanwhile, as it was quiet or the profiler started anew, has counted for another one since.
    let period_ns = if call.expiries.cast_signed() > 0 { period_ns(block) } else { 0 };
    let burnt_ns = call.expiries.saturating_mul(period_ns);
    (block.since_ns, block.since_cpu_ns) = (0, 0);
    recover(block);
    // A call that was as long as this because of the handler is none that counts, nor is its CPU time.
    let handled_ns = match period_ns {
        0 => 0,
        _ => call.handled_ns.saturating_add(call.expiries.saturating_mul(DELIVERY_NS)),
    };
    let measured_ns = match call.cpu_ns {
        0 => call.took_ns.saturating_sub(handled_ns),
        cpu_ns => call.took_ns.saturating_sub(cpu_ns),
    };
    if measured_ns < SHORTEST_NS {
        return;
    }
    // On average, and exactly.
    let (mut took_ns, mut exact_ns) = (measured_ns, measured_ns);
    if call.cpu_ns == 0 {
        let burnt_ns = if is_of_file && !is_long { block.tell(measured_ns, burnt_ns, is_known) } else { burnt_ns };
        if is_of_file && !is_known {
            exact_ns = block.without_told(measured_ns);
        }
        let most_ns = match burnt_ns {
            0 => u64::MAX,
            _ if is_of_file && !is_long => MOST_OWED_NS.max(burnt_ns),
            _ => period_ns,
        };
        took_ns = block.without_cpu((call.function, is_of_file), exact_ns, burnt_ns, most_ns);
        // A short one that is likely a wait did wait, and what it burnt is taken off where the span says its CPU time.
        if is_long || !is_likely {
            exact_ns = times::without_cpu(call.function, call.polls != 0, state, exact_ns, took_ns);
        }
    }
    block.whole_ns += took_ns;
    if exact_ns == 0 {
        return;
    }
    block.total_ns += took_ns;
    let (mut lock_ns, mut lock_state, frame) = (0, state, WaitFrame(call.frame));
    if state == State::Lock {
        let (lock, mutex, caller) = (call.argument, call.mutex.addr(), call.caller.addr());
        let wait = LockWait { lock, mutex, caller, took_ns: exact_ns, ended_ns, frame };
        (lock_ns, lock_state) = taking::interpreter_lock(&wait);
    }
    if times::wants_span_times() {
        let lock_ns = lock_ns.min(exact_ns);
        times::add_wait(block, call, (state, exact_ns - lock_ns), (lock_state, lock_ns));
    }
    let lock_ns = lock_ns.min(took_ns);
    let before_ns = took_ns - lock_ns;
    if let Some((weight, generation)) = chosen(block, before_ns, ended_ns) {
        #[expect(clippy::cast_possible_truncation, reason = "some hundred functions")]
        let leaf = FIRST_FUNCTION + call.function as u16;
        let (state, took_ns, caller) = (state as u16, before_ns, call.caller.addr());
        sample(block, Pending { leaf, state, generation, waits: 1, weight, took_ns, caller }, frame);
    }
    if let Some((weight, generation)) = chosen(block, lock_ns, ended_ns) {
        let leaf = if lock_state == State::Gvl { GVL } else { GIL };
        let wait =
            Pending { leaf, state: lock_state as u16, generation, waits: 1, weight, took_ns: lock_ns, caller: 0 };
        if call.mutex.is_null() {
            sample(block, wait, frame);
        } else {
            hold(block, call.mutex, wait);
        }
    }
}

/// How often the calling thread gave its processor away so far; `None`: this kernel does not say.
fn times_given_away() -> Option<u64> {
    let is_known = COUNTS_SWITCHES.load(Ordering::Relaxed);
    is_known.then(switches::own).flatten().map(|switches| switches.voluntary)
}

/// What a thread's time in the run queue stands for, if it is noted by an entry of its own: they are chosen as waits are, and
/// [among them](count_claim), so where many are preempted they cost no more.
pub(in crate::sample) fn weight_of_claim(rest_ns: u64, now_ns: u64) -> Option<u64> {
    // SAFETY: the calling thread's own block.
    wrappers::own_block().and_then(|block| unsafe { (*block).weight_of(rest_ns, mean_ns(), now_ns) })
}

/// Such an entry was written: there are so many a second.
pub(in crate::sample) fn count_claim() {
    SAMPLED.fetch_add(1, Ordering::Relaxed);
}

/// What a wait stands for, if it becomes a sample, and whose.
fn chosen(block: &mut Block, took_ns: u64, now_ns: u64) -> Option<(u64, u16)> {
    if took_ns == 0 {
        return None;
    }
    let weight = block.weight_of(took_ns, mean_ns(), now_ns)?;
    let generation = fates::take(weight);
    if block.busy_at != 0 {
        // In a signal handler that came while we were at it: who is interrupted holds the ring.
        lose(Fate::Busy, Tally { samples: 1, weight }, generation);
        return None;
    }
    Some((weight, generation))
}

#[expect(clippy::cast_precision_loss, reason = "hours at most")]
fn mean_ns() -> f64 {
    MEAN_NS.load(Ordering::Relaxed) as f64
}

fn hold(block: &mut Block, mutex: *const (), wait: Pending) {
    let lost = if mutex.is_null() { wait.tally() } else { block.hold(mutex, wait) };
    if lost.samples > 0 {
        lose(Fate::Busy, lost, wait.generation);
    }
}

/// Counts waits that are no samples, and were in spans.
fn lose(fate: Fate, waits: Tally, generation: u16) {
    if fates::end(fate, waits, generation) {
        threads::drop_waits(waits);
    }
}

/// The mutex is unlocked until whose unlocking waits were pending.
extern "C-unwind" fn on_unlock(block: *mut Block) {
    // SAFETY: as in `on_wait`.
    sample_pending(unsafe { &mut *block });
}

fn sample_pending(block: &mut Block) {
    for wait in block.take_pending() {
        if wait.weight > 0 && fates::is_of_now(wait.generation) {
            sample(block, wait, WaitFrame::LEFT);
        }
    }
    times::settle(block);
}

/// Takes the samples of waits of the calling thread that were pending as its stack could not be read
/// ([`Runtime::defers`](crate::Runtime::defers)): now it can. Nothing, mostly, which costs 2 ns.
///
/// # Safety
/// As for [`sample_here`](crate::sample_here).
pub unsafe fn sample_pending_waits() {
    // SAFETY: the calling thread's own block.
    if let Some(block) = wrappers::own_block().map(|block| unsafe { &mut *block })
        && block.has_pending()
        && block.busy_at == 0
    {
        sample_pending(block);
    }
}

fn sample(block: &mut Block, pending: Pending, frame: WaitFrame) {
    if has_room() {
        take(block, pending, frame);
    } else {
        lose(Fate::Busy, pending.tally(), pending.generation);
    }
}

/// On its own, so that a wait that becomes no sample needs little of a stack.
#[inline(never)]
fn take(block: &mut Block, pending: Pending, frame: WaitFrame) {
    let Pending { leaf, state, generation, weight, took_ns, caller, .. } = pending;
    let (leaf, state) = (FIRST_FRAME + u64::from(leaf), State::of(state.into()).unwrap_or_default());
    block.busy_at = stack_place();
    let profile_type = profile_type();
    let count = block.count_of(weight, took_ns);
    match own_record::find(block) {
        Some((record, value)) => {
            // SAFETY: on the record's thread, outside of its handler and of any walk.
            match unsafe {
                taking::sample_wait(record, value, Wait { profile_type, state, count, weight, leaf, caller, frame })
            } {
                Sampled::Yes => {
                    fates::end(Fate::Sampled, pending.tally(), generation);
                    SAMPLED.fetch_add(1, Ordering::Relaxed);
                }
                Sampled::Later(mutex) => hold(block, mutex, pending),
                // The thread itself counts what its ring had no room for.
                Sampled::No(fate @ (Fate::Outside | Fate::Ring)) => drop(fates::end(fate, pending.tally(), generation)),
                Sampled::No(fate) => lose(fate, pending.tally(), generation),
            }
        }
        // A thread that is not found yet, or a child of vfork, which is another process in our memory.
        // SAFETY: the calling thread is asked about itself.
        None if unsafe { taking::is_in_span(record::nobody()) } => {
            lose(Fate::Thread, pending.tally(), generation);
            // So that threads for which there is no record do not keep the profiler's thread awake: as many a second come as samples do.
            SAMPLED.fetch_add(1, Ordering::Relaxed);
            WAKE.wake();
        }
        None => drop(fates::end(Fate::Outside, pending.tally(), generation)),
    }
    block.busy_at = 0;
}

/// What a sample of a wait may need of a stack: of 2,607 bytes CoreCLR's was seen to use, the call that waited included. Code that is not
/// optimized takes three times as much.
const SAMPLE_BYTES: usize = if cfg!(debug_assertions) { 9_216 } else { 3_072 };
/// What the kernel needs to tell of a timer meanwhile, where it does not say.
const SIGNAL_BYTES: u64 = 4_096;

/// Whether the stack has room for a sample, if it is that of a signal's handler of the program's, which may be small. 0.1 µs: a system call.
#[inline(never)]
fn has_room() -> bool {
    // SAFETY: plain bits.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: only asked.
    unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) };
    if stack.ss_flags & libc::SS_ONSTACK == 0 {
        return true;
    }
    let guard = handler::runtime().map_or(0, |runtime| runtime.signal_stack_guard());
    let signal = usize::try_from(SIGNAL_ROOM.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
    let room = (&raw const stack).addr().saturating_sub(stack.ss_sp.addr());
    room >= (guard + SAMPLE_BYTES).saturating_add(signal)
}

/// Where on its stack the calling thread is, in units of 16 bytes; not 0.
#[inline(never)]
#[expect(clippy::cast_possible_truncation, reason = "places of one stack are compared, by their difference")]
fn stack_place() -> u32 {
    let here = 0_u8;
    (((&raw const here).addr() >> 4) as u32).max(1)
}

/// A sample that was being taken is over if its caller is: a signal's handler of the program's has jumped out of it (siglongjmp). What
/// it left as it was is put right: no other sample of the thread could be taken any more.
fn recover(block: &mut Block) {
    // A stack grows down: whoever is above has left it. A handler of the program's that waits is below, or on another stack.
    if block.busy_at == 0 || stack_place().wrapping_sub(block.busy_at).cast_signed() <= 0 || is_on_other_stack() {
        return;
    }
    let is_left = |record: &ThreadRecord| record.is_busy() || record.is_entered();
    if let Some((record, _)) = own_record::known(block).filter(|(record, _)| is_left(record)) {
        record.set_busy(false);
        record.leave();
    }
    // At last: this may be jumped out of too.
    block.busy_at = 0;
}

/// Whether the calling thread runs on its alternate stack for signals.
fn is_on_other_stack() -> bool {
    // SAFETY: plain bits.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: only asks.
    unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) != 0 || stack.ss_flags & libc::SS_ONSTACK != 0 }
}

/// What an expiry of the thread's timer weighs; 0 if the record is another thread's by now.
fn period_ns(block: &Block) -> u64 {
    let value = block.record();
    record::by_signal_value(value).filter(|record| record.is_for(value)).map_or(0, ThreadRecord::period_ns)
}
