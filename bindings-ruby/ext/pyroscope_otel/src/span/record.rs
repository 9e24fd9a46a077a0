//! The slot of a thread: which span and tags it is in, as the signal handler reads it.
//!
//! A slot is written by its own thread alone, and read by a handler on that same thread: two halves and an index, so the
//! handler never sees half a write. The name lies in the half, as a Ruby string may move. Slots lie in one static array
//! and are claimed by a bit, without a lock, so that a fork finds none held; which one is the calling thread's stands in
//! a thread-local word of the C shim.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use spanprof_core::{Context, MAX_NAME_BYTES, SpanRecord, SpanTimes, TagSetId, ThreadWord};

unsafe extern "C" {
    fn pyroscope_slot() -> *mut c_void;
    fn pyroscope_set_slot(slot: *mut c_void);
}

/// Threads that can have a slot at once, as many as the engine samples; others have samples without spans.
const MAX_SLOTS: usize = 8_192;
const WORDS: usize = MAX_SLOTS / 64;

/// A span as a sample carries it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids {
    /// High and low half, as the SDK's bytes say.
    pub(crate) trace_id: [u64; 2],
    /// Of the span that samples carry.
    pub(crate) span_id: u64,
    /// Of the innermost span, which is another one where samples carry local roots.
    pub(crate) innermost: u64,
    /// The span that samples carry was current in another thread first: the time of this one is beside its own.
    pub(crate) is_concurrent: bool,
}

/// No half of a slot counts, see [`Slot::current`]. All zero, so that unused slots take no memory.
const NONE: u8 = 0;

/// Numbers and a pointer, for which all zero is a value.
struct Half {
    record: SpanRecord,
    innermost: u64,
    name: [u8; MAX_NAME_BYTES],
}

impl Half {
    fn is_concurrent(&self) -> bool {
        self.record.flow() != 0
    }

    #[inline]
    fn is_of(&self, ids: Ids, times: *const SpanTimes) -> bool {
        (self.record.span_id(), self.innermost, self.is_concurrent()) == (ids.span_id, ids.innermost, ids.is_concurrent)
            && self.record.times().map_or(ptr::null(), ptr::from_ref) == times
    }
}

/// What a handler reads of its thread.
pub(crate) struct Slot {
    halves: [UnsafeCell<MaybeUninit<Half>>; 2],
    /// [`NONE`], or 1 + the number of the half that counts.
    current: AtomicU8,
    /// Spans count in the generation of their writing: what was written before hooks were removed is no longer true.
    follow_generation: AtomicU32,
    tags: UnsafeCell<TagSetId>,
    /// Which Ruby thread it speaks for, where native threads are shared: the address of what is saved with that, 0 if nothing is.
    pub(super) saved_in: AtomicUsize,
    /// When its thread, which waited, was woken by another one last, by CLOCK_MONOTONIC; 0 before Ruby 3.3.
    ready_ns: AtomicU64,
    /// The Ruby thread that is known to have this slot, see [`ready`](crate::events::ready).
    #[cfg(ruby_gte_3_3)]
    ready_thread: AtomicU64,
    /// Which Ruby thread it speaks for: another number for each.
    thread: AtomicU32,
    /// The Fiber that runs, 0 if it is not known; marked, see [`for_each_object`].
    fiber: AtomicU64,
    /// Where the data lie of the fiber in which the thread began, 0 if it is not known.
    first_fiber: AtomicUsize,
    /// The OpenTelemetry Context that was published last, where fibers inherit it; marked, see [`for_each_object`].
    context_object: AtomicU64,
    /// Who has the times of the span that was published last; marked likewise.
    times_object: AtomicU64,
    /// The sums of the local root that the thread is in, 0: it is in none that has any; marked likewise.
    pub(super) root_times: AtomicU64,
}

// SAFETY: a slot is only used by the thread that claimed it and by handlers on that thread.
unsafe impl Sync for Slot {}

static SLOTS: [Slot; MAX_SLOTS] = [const { Slot::unused() }; MAX_SLOTS];
static CLAIMED: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// Which time of following spans this is; it begins with 1.
static FOLLOW_GENERATION: AtomicU32 = AtomicU32::new(0);

/// The number of the next Ruby thread that a slot speaks for.
static NEXT_THREAD: AtomicU32 = AtomicU32::new(1);

/// What slots say of spans until now no longer counts.
pub(crate) fn next_follow_generation() {
    FOLLOW_GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Not 0 in a thread that has a slot, which it gives back as it ends.
static HAS_SLOT: ThreadWord = ThreadWord::new(Some(at_end));

extern "C" fn at_end(_: *mut c_void) {
    release();
}

/// The calling thread's slot, if it has one. For handlers too.
#[inline]
pub(crate) fn own() -> Option<&'static Slot> {
    // SAFETY: takes nothing; reads a word of static thread-local storage.
    let slot = unsafe { pyroscope_slot() };
    // SAFETY: `claim` stored a reference to a slot, which is static.
    unsafe { slot.cast::<Slot>().as_ref() }
}

/// The calling thread's slot; at the first call it gets one. `None`: there are too many threads.
#[inline]
pub(crate) fn own_or_claim() -> Option<&'static Slot> {
    own().or_else(claim)
}

#[cold]
fn claim() -> Option<&'static Slot> {
    // Nobody would give it back.
    if !(HAS_SLOT.prepare() && HAS_SLOT.set(1)) {
        return None;
    }
    for (at, word) in CLAIMED.iter().enumerate() {
        let mut taken = word.load(Ordering::Relaxed);
        while taken != u64::MAX {
            let bit = taken.trailing_ones() as usize;
            // Acquire pairs with the Release in `release`: what the last owner wrote is written.
            match word.compare_exchange_weak(taken, taken | 1 << bit, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let slot = SLOTS.get(at * 64 + bit)?;
                    slot.clear();
                    slot.set_tags(TagSetId::EMPTY);
                    slot.saved_in.store(0, Ordering::Relaxed);
                    slot.context_object.store(0, Ordering::Relaxed);
                    slot.set_times_object(0);
                    slot.forget_thread();
                    compiler_fence(Ordering::SeqCst);
                    // SAFETY: any pointer may be stored; only the calling thread reads it.
                    unsafe { pyroscope_set_slot(ptr::from_ref(slot).cast_mut().cast()) };
                    return Some(slot);
                }
                Err(now) => taken = now,
            }
        }
    }
    None
}

fn release() {
    let Some(slot) = own() else { return };
    // First the word, so that a handler from here on finds none; it runs on this thread, so a compiler's fence is enough.
    // SAFETY: as in `claim`.
    unsafe { pyroscope_set_slot(ptr::null_mut()) };
    compiler_fence(Ordering::SeqCst);
    let index = (ptr::from_ref(slot).addr() - SLOTS.as_ptr().addr()) / size_of::<Slot>();
    if let Some(word) = CLAIMED.get(index / 64) {
        word.fetch_and(!(1 << (index % 64)), Ordering::Release);
    }
}

/// Slots that threads have. With the GVL held, as what is asked of them is written.
pub(crate) fn for_each_slot(mut f: impl FnMut(&'static Slot)) {
    for (at, word) in CLAIMED.iter().enumerate() {
        let taken = word.load(Ordering::Acquire);
        for bit in (0..64).filter(|bit| taken & 1 << bit != 0) {
            if let Some(slot) = SLOTS.get(at * 64 + bit) {
                f(slot);
            }
        }
    }
}

/// Ruby objects that slots hold.
pub(crate) fn for_each_object(mut f: impl FnMut(u64)) {
    for_each_slot(|slot| {
        let times = slot.times_object.load(Ordering::Relaxed);
        let objects = [slot.context_object(), slot.fiber(), times, slot.root_times.load(Ordering::Relaxed)];
        objects.into_iter().filter(|object| *object != 0).for_each(&mut f)
    });
}

impl Slot {
    const fn unused() -> Self {
        Self {
            halves: [const { UnsafeCell::new(MaybeUninit::zeroed()) }; 2],
            current: AtomicU8::new(NONE),
            follow_generation: AtomicU32::new(0),
            tags: UnsafeCell::new(TagSetId::EMPTY),
            saved_in: AtomicUsize::new(0),
            ready_ns: AtomicU64::new(0),
            #[cfg(ruby_gte_3_3)]
            ready_thread: AtomicU64::new(0),
            thread: AtomicU32::new(0),
            fiber: AtomicU64::new(0),
            first_fiber: AtomicUsize::new(0),
            context_object: AtomicU64::new(0),
            times_object: AtomicU64::new(0),
            root_times: AtomicU64::new(0),
        }
    }

    /// The context that was published last; 0, which is Ruby's `false`: none.
    pub(crate) fn context_object(&self) -> u64 {
        self.context_object.load(Ordering::Relaxed)
    }

    pub(crate) fn set_context_object(&self, context: u64) {
        self.context_object.store(context, Ordering::Relaxed);
    }

    /// What [`publish`](Self::publish) points to next lives in this object; 0, which is Ruby's `false`: it points nowhere.
    pub(crate) fn set_times_object(&self, object: u64) {
        self.times_object.store(object, Ordering::Relaxed);
    }

    /// When the thread was woken last. The mutex of Ruby's scheduler orders who says it and who asks.
    pub(crate) fn ready_ns(&self) -> u64 {
        self.ready_ns.load(Ordering::Relaxed)
    }

    #[cfg(ruby_gte_3_3)]
    pub(crate) fn set_ready_ns(&self, now_ns: u64) {
        self.ready_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Whether this Ruby thread is known to have the slot. Own thread only.
    #[cfg(ruby_gte_3_3)]
    pub(crate) fn is_known_to(&self, thread: u64) -> bool {
        self.ready_thread.load(Ordering::Relaxed) == thread
    }

    #[cfg(ruby_gte_3_3)]
    pub(crate) fn set_known_to(&self, thread: u64) {
        self.ready_thread.store(thread, Ordering::Relaxed);
    }

    /// The number of the Ruby thread that it speaks for.
    pub(crate) fn thread(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }

    /// The fiber that runs, if it is known; 0, which is Ruby's `false`: it is not.
    pub(crate) fn fiber(&self) -> u64 {
        self.fiber.load(Ordering::Relaxed)
    }

    pub(crate) fn set_fiber(&self, fiber: u64) {
        self.fiber.store(fiber, Ordering::Relaxed);
    }

    pub(crate) fn first_fiber(&self) -> usize {
        self.first_fiber.load(Ordering::Relaxed)
    }

    pub(crate) fn set_first_fiber(&self, data: usize) {
        self.first_fiber.store(data, Ordering::Relaxed);
    }

    /// What is known of fibers is no longer true.
    pub(crate) fn forget_fibers(&self) {
        self.set_fiber(0);
        self.set_first_fiber(0);
    }

    /// Its Ruby thread ends, or another one begins.
    pub(crate) fn forget_thread(&self) {
        #[cfg(ruby_gte_3_3)]
        self.ready_thread.store(0, Ordering::Relaxed);
        self.thread.store(NEXT_THREAD.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.root_times.store(0, Ordering::Relaxed);
        self.forget_fibers();
    }

    /// In a forked child: its parent goes on with the spans that are current, so what is done in them here is beside them. Own thread only.
    pub(crate) fn begin_anew(&self) {
        self.thread.store(NEXT_THREAD.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        if let Some(half) = self.current_half() {
            half.record.enter(|| SpanRecord::ELSEWHERE);
        }
    }

    /// Outside every span from now on.
    #[inline]
    pub(crate) fn clear(&self) {
        self.current.store(NONE, Ordering::Relaxed);
        self.follow_generation.store(FOLLOW_GENERATION.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// In a span from now on. The name is truncated, and bytes that are no UTF-8 are replaced. Own thread only.
    #[inline]
    pub(crate) fn publish(&self, ids: Ids, name: &[u8], times: *const SpanTimes) {
        if self.current_half().is_some_and(|half| half.is_of(ids, times)) {
            return;
        }
        let next = usize::from(self.current.load(Ordering::Relaxed) == 1);
        // SAFETY: only this thread writes its slot, and no handler reads the half that does not count.
        let half = unsafe { &mut *self.halves[next].get() };
        // SAFETY: all zero, or written below.
        let half = unsafe { half.assume_init_mut() };
        let length = copy_name(name, &mut half.name);
        let name = str::from_utf8(&half.name[..length]).unwrap_or_default();
        // SAFETY: the name lies beside the record and is written only when the record counts no more.
        let record = unsafe { SpanRecord::new(ids.trace_id, ids.span_id, name) };
        // SAFETY: the collector marks what has them for as long as this half counts.
        half.record = unsafe { record.with_times(times) };
        if ids.is_concurrent {
            half.record.enter(|| SpanRecord::ELSEWHERE);
        }
        half.innermost = ids.innermost;
        compiler_fence(Ordering::SeqCst);
        #[expect(clippy::cast_possible_truncation, reason = "1 or 2")]
        self.current.store(1 + next as u8, Ordering::Relaxed);
        self.follow_generation.store(FOLLOW_GENERATION.load(Ordering::Relaxed), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// Own thread only, or its handler.
    #[inline]
    fn current_half(&self) -> Option<&Half> {
        if self.follow_generation.load(Ordering::Relaxed) != FOLLOW_GENERATION.load(Ordering::Relaxed) {
            return None;
        }
        let half = self.halves.get(usize::from(self.current.load(Ordering::Relaxed)).wrapping_sub(1))?;
        // SAFETY: the half that counts is whole, and its thread writes the other one next.
        let half = unsafe { &*half.get() };
        // SAFETY: as above.
        Some(unsafe { half.assume_init_ref() })
    }

    /// The span's id, that of the innermost span and the name, as they are published.
    pub(crate) fn span(&self) -> Option<(Ids, &[u8])> {
        let half = self.current_half()?;
        let ids = Ids {
            trace_id: half.record.trace_id(),
            span_id: half.record.span_id(),
            innermost: half.innermost,
            is_concurrent: half.is_concurrent(),
        };
        let end = half.name.iter().position(|byte| *byte == 0xFF).unwrap_or(half.name.len());
        Some((ids, &half.name[..end]))
    }

    /// The trace of the span that is published.
    pub(crate) fn trace_id(&self) -> Option<[u64; 2]> {
        self.current_half().map(|half| half.record.trace_id())
    }

    /// The tags that samples of this thread carry. Own thread only, or its handler.
    #[inline]
    pub(crate) fn tags(&self) -> TagSetId {
        // SAFETY: one aligned word, which only this thread writes.
        unsafe { self.tags.get().read_volatile() }
    }

    /// Own thread only.
    #[inline]
    pub(crate) fn set_tags(&self, tags: TagSetId) {
        // SAFETY: one aligned word, which only this thread writes and reads.
        unsafe { self.tags.get().write_volatile(tags) };
    }

    /// What a sample of this thread carries.
    #[inline]
    pub(crate) fn context(&self) -> Context {
        let span = self.current_half().map_or(ptr::null(), |half| &raw const half.record);
        Context { span, tags: self.tags() }
    }
}

/// Copies as much of `name` as there is room for, replaces what is no UTF-8, and ends it with 0xFF, which no UTF-8 holds,
/// if there is room. Returns the length.
#[inline]
fn copy_name(name: &[u8], into: &mut [u8; MAX_NAME_BYTES]) -> usize {
    let mut length = 0;
    let mut append = |part: &str| {
        let part = &part[..part.floor_char_boundary(MAX_NAME_BYTES - length)];
        into[length..length + part.len()].copy_from_slice(part.as_bytes());
        length += part.len();
    };
    for chunk in name.utf8_chunks() {
        append(chunk.valid());
        if !chunk.invalid().is_empty() {
            append("\u{FFFD}");
        }
    }
    if length < MAX_NAME_BYTES {
        into[length] = 0xFF;
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_truncated_between_characters_and_made_utf8() {
        let mut into = [0; MAX_NAME_BYTES];
        let length = copy_name(format!("{}é", "x".repeat(255)).as_bytes(), &mut into);
        assert_eq!(length, 255);
        let length = copy_name(b"a\xffb\0c", &mut into);
        assert_eq!(str::from_utf8(&into[..length]), Ok("a\u{FFFD}b\0c"));
    }
}
