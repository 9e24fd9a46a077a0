//! A bounded ring of words, one a thread: the handler on that thread writes, whoever drains reads.
//!
//! ```text
//! sample   kind:7 concurrent:1 profile_type:4 state:4 frames:16 extra:16 count:16 (of a CPU sample: claim:16) | value | span id | context tags:32 thread tags:32 | frames… | extra…
//! span     kind:8 name bytes:16 …                      | span id | trace id high | low | name, padded to words…
//! again    kind:8 value:56                               the newest sample once more
//! pad      kind:8                                        nothing up to the end of the ring
//! ```
//!
//! Positions count words and never wrap; an entry never crosses the ring's end. The writer publishes with a Release
//! store of `head`, the reader gives room back with a Release store of `tail`.

use std::io;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::context::current::Context;
use crate::context::span_record::{MAX_NAME_BYTES, SpanRecord};
use crate::context::tags::TagSetId;
use crate::profile_type::ProfileTypeId;
use crate::sample::cursor::Cursor;
use crate::sample::frames::FrameWriter;
use crate::sample::waits::flow::is_concurrent;
use crate::wait_state::State;

const KIND_SAMPLE: u64 = 1;
const KIND_SPAN: u64 = 2;
const KIND_AGAIN: u64 = 3;
const KIND_PAD: u64 = 4;
/// A bit of a sample's kind.
const CONCURRENT: u64 = 0x80;

const SAMPLE_HEADER: usize = 4;
const SPAN_HEADER: usize = 4;
/// No entry yet, or none that "again" may refer to.
const NO_ENTRY: u64 = u64::MAX;
const AGAIN_MAX: u64 = (1 << 56) - 1;

/// The ring of one thread. All zeros is a ring without memory, which holds nothing.
#[derive(Debug)]
pub(crate) struct Ring {
    words: AtomicPtr<u64>,
    /// Words of memory, a power of two.
    capacity: AtomicU64,
    cursor: Cursor,
    /// Position of the newest sample. The writer's own.
    newest: AtomicU64,
    /// The era it was written in. The writer's own.
    newest_era: AtomicU64,
}

/// What a sample counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Measure {
    pub(crate) profile_type: ProfileTypeId,
    /// Of wall time: what it went to.
    pub(crate) state: State,
    /// How many things it stands for, for a profile type with two sample types.
    pub(crate) count: u16,
    /// Of a CPU sample, which counts one: its [claim](super::waits::claim) on the thread's time in the run queue.
    pub(crate) claim: u16,
    /// Of one in [`State::RunQueue`], which is no sample: the nanoseconds that it claims.
    pub(crate) value: u64,
}

impl Measure {
    /// It is no sample, but a claim of a span that ended.
    pub(crate) fn only_claims(self) -> bool {
        self.profile_type == ProfileTypeId::TIMER && self.state == State::RunQueue
    }
}

/// When a sample is taken: spans are defined once a window, and "again" refers to no entry of another era.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Era {
    pub(crate) window: u32,
    /// [`Runtime::epoch`](super::runtime::Runtime::epoch).
    pub(crate) epoch: u32,
}

impl Era {
    fn number(self) -> u64 {
        u64::from(self.window) << 32 | u64::from(self.epoch)
    }
}

/// What a writer could do with a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// It is in the ring; the flag says that more than half is used.
    Yes { half_full: bool },
    /// There was no room.
    Full,
}

/// One entry, as the reader sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry<'ring> {
    Sample(Sample<'ring>),
    Span { span_id: u64, trace_id: [u64; 2], name: &'ring [u8] },
    Again { value: u64 },
}

/// A sample entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample<'ring> {
    pub(crate) measure: Measure,
    pub(crate) span_id: u64,
    /// Its time is beside the span's own, see [`flow`](super::waits::flow).
    pub(crate) is_concurrent: bool,
    pub(crate) context_tags: TagSetId,
    pub(crate) thread_tags: TagSetId,
    pub(crate) frames: &'ring [u64],
    pub(crate) extra: &'ring [u64],
}

impl Ring {
    pub(crate) const fn without_memory() -> Self {
        Self {
            words: AtomicPtr::new(std::ptr::null_mut()),
            capacity: AtomicU64::new(0),
            cursor: Cursor { head: AtomicU64::new(0), tail: AtomicU64::new(0) },
            // Zero, though it is no position before `give`: thousands of these in a static are then no part of the file.
            newest: AtomicU64::new(0),
            newest_era: AtomicU64::new(0),
        }
    }

    /// Gives the ring memory and empties it. Nobody may write or read it meanwhile.
    pub(crate) fn give(&self, memory: Memory) {
        self.cursor.reset();
        self.newest.store(NO_ENTRY, Ordering::Relaxed);
        self.capacity.store(memory.words as u64, Ordering::Relaxed);
        // Release: pairs with the handler's load in `write`, which runs on another thread when a sweep armed it.
        self.words.store(memory.start, Ordering::Release);
        let _ = ManuallyDrop::new(memory);
    }

    /// Takes the memory back. Nobody may write or read the ring meanwhile.
    pub(crate) fn take(&self) -> Option<Memory> {
        let start = self.words.swap(std::ptr::null_mut(), Ordering::AcqRel);
        #[expect(clippy::cast_possible_truncation, reason = "set from a usize")]
        let words = self.capacity.swap(0, Ordering::Relaxed) as usize;
        (!start.is_null()).then_some(Memory { start, words })
    }

    /// This ring in this window, for spans that are defined there. Threads may share a span, and what one of them wrote is read later than the
    /// other's ring, maybe only in the next window: so each ring has the definitions of its own samples. Windows that are eleven days
    /// apart are taken for one. Never 0, which is none.
    #[inline]
    fn in_window(&self, window: u32) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "sixteen bits are kept")]
        let ring = (std::ptr::from_ref(self).addr() >> 6) as u32;
        (window << 16 | ring & 0xffff).max(1)
    }

    /// Writes one sample: the span's definition if this window's ring has not got it, and the frames that `walk`
    /// pushes, or "again". `walk` is called a second time if the ring's end was in the way. Handler; see
    /// `sample/handler.rs` for its rules.
    ///
    /// # Safety
    /// Only one writer at a time, on the ring's own thread, and the memory stays given until it returns.
    /// `context.span` is null or valid.
    #[inline]
    pub(crate) unsafe fn write(
        &self,
        measure: Measure,
        context: Context,
        thread_tags: TagSetId,
        era: Era,
        walk: impl Fn(&mut FrameWriter<'_>),
    ) -> Written {
        let words = self.words.load(Ordering::Acquire);
        if words.is_null() {
            return Written::Full;
        }
        let capacity = self.capacity.load(Ordering::Relaxed);
        let (mut at, tail) = self.cursor.for_writer();
        // SAFETY: null or valid, by the caller's contract.
        let span = unsafe { context.span.as_ref() };
        let defined_in = self.in_window(era.window);
        let define = span.filter(|span| !span.is_defined_in(defined_in));
        let span_words = define.map_or(0, |span| SPAN_HEADER + span.name_parts().1.div_ceil(8));
        let Measure { profile_type, state, count, claim, value } = measure;
        let count = if profile_type == ProfileTypeId::TIMER { claim } else { count };
        let concurrent = span.is_some_and(|span| is_concurrent(span.flow(), state));
        // Tasks that are beside a span's own flow go on by the thousand at one instant: a quarter is for all else. What only claims leaves
        // half to samples.
        let only_claims = measure.only_claims();
        let kept = match state {
            _ if only_claims => capacity / 2,
            _ if concurrent && state.is_of_flow() => capacity / 4,
            _ => 0,
        };

        // First where the head is, then, if the ring's end was in the way, once more at its start.
        loop {
            let offset = at & (capacity - 1);
            let free = (capacity - at.wrapping_sub(tail)).saturating_sub(kept);
            let room = free.min(capacity - offset);
            #[expect(clippy::cast_possible_truncation, reason = "below the capacity, which came from a usize")]
            let (offset, room) = (offset as usize, room as usize);
            if room > span_words + SAMPLE_HEADER {
                // SAFETY: offset + room <= capacity words, which are mapped.
                let start = unsafe { words.add(offset) };
                // SAFETY: as above, and no reader looks at free words.
                let space = unsafe { std::slice::from_raw_parts_mut(start, room) };
                let (span_space, sample_space) = space.split_at_mut(span_words);
                let (header, frame_space) = sample_space.split_at_mut(SAMPLE_HEADER);
                let mut writer = FrameWriter::new(frame_space);
                walk(&mut writer);
                let (frames, extra, truncated) = (writer.frames(), writer.extra(), writer.is_truncated());
                if !truncated {
                    header[0] = KIND_SAMPLE
                        | if concurrent { CONCURRENT } else { 0 }
                        | u64::from(profile_type.0) << 8
                        | u64::from(state as u32) << 12
                        | (frames as u64) << 16
                        | (extra as u64) << 32
                        | u64::from(count) << 48;
                    header[1] = value;
                    header[2] = span.map_or(0, SpanRecord::span_id);
                    header[3] = u64::from(context.tags.0) | u64::from(thread_tags.0) << 32;
                    let length = SAMPLE_HEADER + frames + extra;
                    let same_era = self.newest_era.load(Ordering::Relaxed) == era.number();
                    if define.is_none() && same_era && value <= AGAIN_MAX && !only_claims {
                        // SAFETY: `newest` is a position this writer published, and nothing was written over it since.
                        let same = unsafe { self.is_newest(words, capacity, at, &sample_space[..length]) };
                        if same {
                            sample_space[0] = KIND_AGAIN | value << 8;
                            return self.publish(at + 1, tail, capacity);
                        }
                    }
                    if let Some(span) = define {
                        write_span(span_space, span);
                        span.set_defined_in(defined_in);
                    }
                    self.newest.store(at + span_words as u64, Ordering::Relaxed);
                    self.newest_era.store(era.number(), Ordering::Relaxed);
                    return self.publish(at + (span_words + length) as u64, tail, capacity);
                }
            }
            if (room as u64) == free || offset == 0 {
                return Written::Full;
            }
            // SAFETY: offset < capacity.
            let end = unsafe { words.add(offset) };
            // SAFETY: `room` words from here on are free, and that is at least one.
            unsafe { end.write(KIND_PAD) };
            at += room as u64;
        }
    }

    #[inline]
    fn publish(&self, head: u64, tail: u64, capacity: u64) -> Written {
        self.cursor.publish(head);
        Written::Yes { half_full: head.wrapping_sub(tail) > capacity / 2 }
    }

    /// Whether `entry`, written at position `at`, equals the newest sample, value aside.
    #[inline]
    unsafe fn is_newest(&self, words: *const u64, capacity: u64, at: u64, entry: &[u64]) -> bool {
        let newest = self.newest.load(Ordering::Relaxed);
        if newest == NO_ENTRY || at.wrapping_sub(newest) > capacity - entry.len() as u64 {
            return false; // the new entry lies over it
        }
        #[expect(clippy::cast_possible_truncation, reason = "below the capacity, which came from a usize")]
        let offset = (newest & (capacity - 1)) as usize;
        // SAFETY: offset < capacity.
        let start = unsafe { words.add(offset) };
        // SAFETY: the newest entry lies there and nothing was written over it.
        if unsafe { start.read() } != entry[0] {
            return false;
        }
        // SAFETY: the header is the same, so the length is, and an entry never crosses the ring's end.
        let known = unsafe { std::slice::from_raw_parts(start, entry.len()) };
        known[2..] == entry[2..]
    }

    /// Calls `f` for each entry up to now, then gives their room back. Returns how many words that were.
    ///
    /// # Safety
    /// Only one reader at a time, and the memory stays given until it returns.
    pub(crate) unsafe fn read(&self, f: impl FnMut(Entry<'_>)) -> u64 {
        // SAFETY: by the caller's contract.
        let (start, head) = unsafe { self.peek(f) };
        self.cursor.give_back(head);
        head.wrapping_sub(start)
    }

    /// Calls `f` for each entry up to now and leaves them where they are. Returns from where to where they lie.
    ///
    /// # Safety
    /// Nobody reads on another thread, and the memory stays given until it returns.
    pub(crate) unsafe fn peek(&self, mut f: impl FnMut(Entry<'_>)) -> (u64, u64) {
        let words = self.words.load(Ordering::Acquire);
        let (start, head) = self.cursor.for_reader();
        if words.is_null() {
            return (start, head);
        }
        let capacity = self.capacity.load(Ordering::Relaxed);
        let mut at = start;
        while at != head {
            let offset = at & (capacity - 1);
            #[expect(clippy::cast_possible_truncation, reason = "below the capacity, which came from a usize")]
            let (offset, rest) = (offset as usize, (capacity - offset) as usize);
            // SAFETY: offset < capacity.
            let start = unsafe { words.add(offset) };
            // SAFETY: words between tail and head are written, and the writer leaves them alone until tail moves; what
            // lies behind head is mapped and not read.
            let rest = unsafe { std::slice::from_raw_parts(start, rest) };
            let length = read_entry(rest, &mut f);
            at += length as u64;
        }
        (start, head)
    }
}

fn write_span(space: &mut [u64], span: &SpanRecord) {
    let (name, bytes) = span.name_parts();
    let [high, low] = span.trace_id();
    space[0] = KIND_SPAN | (bytes as u64) << 8;
    space[1] = span.span_id();
    space[2] = high;
    space[3] = low;
    let words = &mut space[SPAN_HEADER..];
    // SAFETY: the name is valid for `bytes` by SpanRecord's contract, and `words` has room for them.
    unsafe { std::ptr::copy_nonoverlapping(name, words.as_mut_ptr().cast::<u8>(), bytes) };
}

/// Passes on the entry at the start of `words`, which reach to the ring's end; returns its length.
fn read_entry(words: &[u64], f: &mut impl FnMut(Entry<'_>)) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "fields of 8, 16 and 32 bits")]
    match words[0] & 0xff & !CONCURRENT {
        KIND_SAMPLE => {
            let (frames, extra) = ((words[0] >> 16 & 0xffff) as usize, (words[0] >> 32 & 0xffff) as usize);
            let body = &words[SAMPLE_HEADER..];
            let profile_type = ProfileTypeId((words[0] >> 8 & 15) as u8);
            let number = (words[0] >> 48) as u16;
            let (count, claim) = if profile_type == ProfileTypeId::TIMER { (1, number) } else { (number, 0) };
            f(Entry::Sample(Sample {
                measure: Measure {
                    profile_type,
                    state: State::of((words[0] >> 12 & 15) as u32).unwrap_or_default(),
                    count,
                    claim,
                    value: words[1],
                },
                span_id: words[2],
                is_concurrent: words[0] & CONCURRENT != 0,
                context_tags: TagSetId(words[3] as u32),
                thread_tags: TagSetId((words[3] >> 32) as u32),
                frames: &body[..frames],
                extra: &body[frames..frames + extra],
            }));
            SAMPLE_HEADER + frames + extra
        }
        KIND_SPAN => {
            let bytes = ((words[0] >> 8) as usize & 0xffff).min(MAX_NAME_BYTES);
            let body = &words[SPAN_HEADER..];
            // SAFETY: `bytes` bytes of name were written into these words, which are as good as bytes.
            let name = unsafe { std::slice::from_raw_parts(body.as_ptr().cast::<u8>(), bytes) };
            f(Entry::Span { span_id: words[1], trace_id: [words[2], words[3]], name });
            SPAN_HEADER + bytes.div_ceil(8)
        }
        KIND_AGAIN => {
            f(Entry::Again { value: words[0] >> 8 });
            1
        }
        _ => words.len(),
    }
}

/// Mapped memory for a ring. Pages are touched only when samples are written.
#[derive(Debug)]
pub(crate) struct Memory {
    start: *mut u64,
    words: usize,
}

// SAFETY: Memory owns its mapping and has no other reference to it.
unsafe impl Send for Memory {}

impl Memory {
    /// Maps `bytes`, a power of two.
    pub(crate) fn map(bytes: usize) -> io::Result<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping, which nothing else refers to.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), words: bytes / size_of::<u64>() })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.words * size_of::<u64>()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and whole, see `map`; nobody refers to it, as `give` and `take` demand.
        unsafe { libc::munmap(self.start.cast(), self.bytes()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Ring {
        let ring = Ring::without_memory();
        ring.give(Memory::map(4096).unwrap());
        ring
    }

    fn write(ring: &Ring, value: u64, context: Context, frames: &[u64]) -> Written {
        write_in(ring, value, context, frames, Era { window: 1, epoch: 0 })
    }

    fn write_in(ring: &Ring, value: u64, context: Context, frames: &[u64], era: Era) -> Written {
        write_of(ring, State::Cpu, value, context, frames, era)
    }

    fn write_of(ring: &Ring, state: State, value: u64, context: Context, frames: &[u64], era: Era) -> Written {
        let measure = Measure { profile_type: ProfileTypeId::TIMER, state, count: 1, claim: 0, value };
        // SAFETY: one thread writes and reads, and the spans outlive the call.
        unsafe {
            ring.write(measure, context, TagSetId(7), era, |out| {
                for &frame in frames {
                    if !out.push(frame) {
                        break;
                    }
                }
            })
        }
    }

    fn read(ring: &Ring) -> Vec<String> {
        let mut all = Vec::new();
        // SAFETY: as above.
        unsafe {
            ring.read(|entry| {
                all.push(match entry {
                    Entry::Sample(s) => format!(
                        "sample {} span {} tags {} {} {:?}",
                        s.measure.value, s.span_id, s.context_tags.0, s.thread_tags.0, s.frames
                    ),
                    Entry::Span { span_id, trace_id, name } => {
                        format!("span {span_id} {trace_id:?} {}", str::from_utf8(name).unwrap())
                    }
                    Entry::Again { value } => format!("again {value}"),
                });
            });
        }
        all
    }

    #[test]
    fn each_ring_defines_a_span_that_threads_share() {
        /// As far from the next one as in a thread's record.
        #[repr(align(64))]
        struct Record(Ring);
        let rings = [Record(ring()), Record(ring())];
        // SAFETY: the name is static.
        let span = unsafe { SpanRecord::new([1, 2], 3, "GET /cart/{id}") };
        let inside = Context { span: &span, tags: TagSetId(5) };
        for Record(ring) in &rings {
            write(ring, 10, inside, &[1]);
            write(ring, 10, inside, &[1]);
        }
        let expected = ["span 3 [1, 2] GET /cart/{id}", "sample 10 span 3 tags 5 7 [1]", "again 10"];
        for Record(ring) in &rings {
            assert_eq!(read(ring), expected);
        }
    }

    #[test]
    fn a_span_is_defined_once_a_window_and_an_equal_sample_is_one_word() {
        let ring = ring();
        // SAFETY: the name is static.
        let span = unsafe { SpanRecord::new([1, 2], 3, "GET /cart/{id}") };
        let inside = Context { span: &span, tags: TagSetId(5) };
        write(&ring, 10, inside, &[1, 2, 3]);
        write(&ring, 20, inside, &[1, 2, 3]);
        write(&ring, 10, Context::NONE, &[1, 2, 3]);
        write(&ring, 10, Context::NONE, &[1, 2]);
        assert_eq!(
            read(&ring),
            [
                "span 3 [1, 2] GET /cart/{id}",
                "sample 10 span 3 tags 5 7 [1, 2, 3]",
                "again 20",
                "sample 10 span 0 tags 0 7 [1, 2, 3]",
                "sample 10 span 0 tags 0 7 [1, 2]",
            ]
        );
        assert_eq!(write(&ring, 30, Context::NONE, &[1, 2]), Written::Yes { half_full: false });
        assert_eq!(read(&ring), ["again 30"], "the newest entry is known after it was read");
    }

    #[test]
    fn a_sample_says_whether_its_span_began_in_another_flow() {
        let ring = ring();
        // SAFETY: the name is static.
        let span = unsafe { SpanRecord::new([1, 2], 3, "GET /") };
        let mut concurrent = Vec::new();
        let inside = Context { span: &span, tags: TagSetId(5) };
        write(&ring, 10, inside, &[1]);
        span.enter(|| SpanRecord::ELSEWHERE);
        span.enter(|| 1);
        write(&ring, 10, inside, &[1]);
        write(&ring, 10, Context::NONE, &[1]);
        // SAFETY: one thread writes and reads.
        unsafe {
            ring.read(|entry| {
                if let Entry::Sample(sample) = entry {
                    concurrent.push((sample.span_id, sample.is_concurrent, sample.measure.profile_type));
                }
            });
        }
        let is_known = cfg!(target_arch = "x86_64");
        let timer = ProfileTypeId::TIMER;
        let expected = [(3, false, timer), (3, true, timer), (0, false, timer)];
        assert!(!is_known || concurrent == expected, "{concurrent:?}");
    }

    #[test]
    fn what_tasks_beside_a_span_s_own_flow_awaited_leaves_a_quarter_of_the_room() {
        let (ring, era) = (ring(), Era { window: 1, epoch: 0 });
        // SAFETY: the name is static.
        let span = unsafe { SpanRecord::new([1, 2], 3, "GET /") };
        span.enter(|| SpanRecord::ELSEWHERE);
        let inside = Context { span: &span, tags: TagSetId(5) };
        let herd = |value: u64| write_of(&ring, State::Await, value, inside, &[value], era);
        let written = (0..).take_while(|value| herd(*value) != Written::Full).count();
        let room = (1..).take_while(|value| write(&ring, *value, inside, &[*value]) != Written::Full).count();
        let expected = if cfg!(target_arch = "x86_64") { (75, 26) } else { (101, 0) };
        assert_eq!((written, room), expected, "512 words hold 101 samples of 5, and a definition");
    }

    #[test]
    fn what_only_claims_leaves_half_of_the_room_to_samples() {
        let (ring, era) = (ring(), Era { window: 1, epoch: 0 });
        let claims = |value: u64| {
            let measure =
                Measure { profile_type: ProfileTypeId::TIMER, state: State::RunQueue, count: 1, claim: 0, value };
            // SAFETY: one thread writes, in no span.
            unsafe {
                ring.write(measure, Context::NONE, TagSetId(7), era, |out| {
                    out.push(1);
                })
            }
        };
        let written = (1..).take_while(|claim| claims(*claim) != Written::Full).count();
        let room = (1..).take_while(|value| write(&ring, *value, Context::NONE, &[*value]) != Written::Full).count();
        assert_eq!((written, room), (51, 51), "512 words hold 102 of 5");
    }

    #[test]
    fn again_refers_to_no_entry_of_another_window_or_epoch() {
        let ring = ring();
        for era in [(1, 0), (1, 0), (1, 1), (1, 1), (2, 1), (2, 1)] {
            write_in(&ring, 10, Context::NONE, &[1], Era { window: era.0, epoch: era.1 });
        }
        let whole = "sample 10 span 0 tags 0 7 [1]";
        assert_eq!(read(&ring), [whole, "again 10", whole, "again 10", whole, "again 10"]);
    }

    #[test]
    fn peeking_leaves_entries_to_be_read() {
        let ring = ring();
        write(&ring, 10, Context::NONE, &[1, 2]);
        let mut frames = Vec::new();
        for _ in 0..2 {
            // SAFETY: one thread writes and reads.
            unsafe {
                ring.peek(|entry| {
                    if let Entry::Sample(sample) = entry {
                        frames.extend_from_slice(sample.frames);
                    }
                });
            }
        }
        assert_eq!(frames, [1, 2, 1, 2]);
        assert_eq!(read(&ring).len(), 1);
    }

    #[test]
    fn a_full_ring_refuses_and_goes_on_after_it_was_read() {
        let ring = ring();
        let deep: Vec<u64> = (0..100).collect();
        let mut written = 0;
        while write(&ring, written, Context::NONE, &deep[(written % 2) as usize..]) != Written::Full {
            written += 1;
        }
        assert_eq!(written, 4, "512 words hold four entries of 104");
        assert_eq!(read(&ring).len(), 4);
        for round in 0..1000 {
            assert_ne!(
                write(&ring, round, Context::NONE, &deep[(round % 90) as usize..]),
                Written::Full,
                "round {round}"
            );
            assert_eq!(read(&ring), [format!("sample {round} span 0 tags 0 7 {:?}", &deep[(round % 90) as usize..])]);
        }
    }

    #[test]
    fn a_stack_longer_than_the_ring_is_refused() {
        let ring = ring();
        let deep: Vec<u64> = (0..512).collect();
        assert_eq!(write(&ring, 1, Context::NONE, &deep), Written::Full);
        assert_eq!(read(&ring), [""; 0]);
    }
}
