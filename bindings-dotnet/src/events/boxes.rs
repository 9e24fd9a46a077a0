//! The async methods that await the one that goes on, read from the objects in which they are suspended.
//!
//! A method that was suspended is a *box*: a task with its variables, its execution context, and what goes on when it has ended, which
//! leads to the box of the method that awaits it. While the runtime restores a box's context, and calls us for it, the box is in a
//! register or on the stack above us. It is told by that very context. What kind an object is its method table says, which managed
//! code explains once; until then it is checked to be one.
//!
//! Called on the thread that goes on, by managed code that holds off garbage collections, so no object moves. Nothing is loaded
//! directly: an object may turn out to be none.

use std::collections::HashMap;

use spanprof_core::FrameId;

use crate::events::twofold::Twofold;
use crate::memory;

/// Words of the stack in which the box is looked for.
const SEARCHED: usize = 400;
/// Methods in a chain, and objects that are followed for them.
pub(super) const MAX_METHODS: usize = 64;
const MAX_OBJECTS: usize = 200;
/// Types that are known; further ones end a chain.
const MAX_TYPES: usize = 16_384;
/// Words of an object that are read.
const WORDS: usize = 8;
/// Objects that are read by one system call.
const AT_ONCE: usize = 64;
/// Words that are read at once where a chain goes on: who awaits each other was made one after the other, mostly, and lies together.
const TOGETHER: usize = 256;
/// Nothing is mapped below it where an address is left to the kernel, as that of the heap.
const LOWEST: u64 = 1 << 40;

/// Where things are in objects, in words.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    /// In a box: its execution context. In a task: what goes on when it has ended.
    context: usize,
    continuation: usize,
    /// In a method table: its class; in that: its method table.
    class: usize,
    table: usize,
}

/// What managed code says of a type.
#[derive(Clone, Copy, Debug)]
struct Type {
    /// The method that it is suspended for; 0: none.
    frame: FrameId,
    /// Its word that leads on, 0 for none; `is_list`: to an array, whose first element does.
    next: usize,
    is_list: bool,
    is_box: bool,
}

#[derive(Debug, Default)]
struct Known {
    layout: Layout,
    types: HashMap<u64, Type>,
}

static KNOWN: Twofold<Option<Known>> = Twofold::new(None, None);

/// What was found.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "on the stack for a moment, where nothing may be allocated")]
pub(super) enum Chain {
    /// Methods, that which goes on first.
    Of([FrameId; MAX_METHODS], usize),
    /// A method table must be explained first.
    Unknown(u64),
    /// No box.
    Nothing,
}

/// Learns where things are: `context` and `continuation` are bytes, `tables` method tables of classes.
pub(super) fn learn_layout(context: usize, continuation: usize, tables: &[u64]) -> bool {
    let word = |address: u64| object(address).map(|words| words[0]);
    let class_of = |table: u64, class: usize| word(table + 8 * class as u64);
    let places = (1..16).flat_map(|class| (0..16).map(move |table| (class, table)));
    let is_it = |&(class, table): &(usize, usize)| {
        tables
            .iter()
            .all(|known| class_of(*known, class).and_then(|class| word(class + 8 * table as u64)) == Some(*known))
    };
    let Some((class, table)) = places.into_iter().find(is_it) else { return false };
    if [context, continuation].iter().any(|bytes| bytes % 8 != 0 || bytes / 8 >= WORDS) || tables.is_empty() {
        return false;
    }
    let layout = Layout { context: context / 8, continuation: continuation / 8, class, table };
    KNOWN.change(|known| *known = Some(Known { layout, types: HashMap::new() }));
    true
}

/// Where an object has a word, in bytes; not its first one.
pub(super) fn offset_of(holder: u64, held: u64) -> Option<u32> {
    let place = object(holder)?.iter().skip(1).position(|word| *word == held)?;
    u32::try_from(8 * (place + 1)).ok()
}

/// Explains a method table: `next` is the offset in bytes of what leads on.
pub(super) fn learn_type(table: u64, frame: FrameId, next: usize, is_list: bool, is_box: bool) {
    KNOWN.change(|known| {
        let Some(known) = known.as_mut() else { return };
        if known.types.len() < MAX_TYPES || known.types.contains_key(&table) {
            let next = if is_box { known.layout.continuation } else { next / 8 };
            known.types.insert(table, Type { frame, next: next.min(WORDS - 1), is_list, is_box });
        }
    });
}

/// A type that may be unloaded is explained anew each time.
pub(super) fn forget_type(table: u64) {
    KNOWN.change(|known| {
        if let Some(known) = known.as_mut() {
            known.types.remove(&table);
        }
    });
}

/// The chain of the box among these words whose execution context this is. `all`: what is not explained ends it.
pub(super) fn chain(words: impl Iterator<Item = u64>, context: u64, all: bool) -> Chain {
    let known = KNOWN.read();
    let Some(known) = known.as_deref().and_then(Option::as_ref).filter(|_| context != 0) else { return Chain::Nothing };
    let mut addresses = [0; SEARCHED];
    let mut count = 0;
    let stack = (&raw const count).addr() as u64;
    for word in words.take(SEARCHED) {
        let may_be = word % 8 == 0 && word >= LOWEST && word >> 47 == 0 && word.abs_diff(stack) > 1 << 20;
        if may_be && !addresses[..count].contains(&word) {
            addresses[count] = word;
            count += 1;
        }
    }
    for some in addresses[..count].chunks(AT_ONCE) {
        let mut contents = [[0; WORDS]; AT_ONCE];
        let there = memory::read_each(some, &mut contents);
        for (at, (address, words)) in some.iter().zip(&contents).enumerate() {
            let is_there = there & 1 << at != 0;
            if !is_there || words[known.layout.context] != context || !known.is_table(words[0]) {
                continue;
            }
            match known.types.get(&words[0]) {
                Some(kind) if kind.is_box => return known.follow(*address, all),
                None if !all => return Chain::Unknown(words[0]),
                _ => {}
            }
        }
    }
    Chain::Nothing
}

impl Known {
    fn follow(&self, first: u64, all: bool) -> Chain {
        let (mut frames, mut count, mut at) = ([0; MAX_METHODS], 0, first);
        let mut copied = Copied::NOTHING;
        for _ in 0..MAX_OBJECTS {
            let Some(words) = copied.object(at) else { break };
            let Some(kind) = self.types.get(&words[0]) else {
                if !all && self.is_table(words[0]) {
                    return Chain::Unknown(words[0]);
                }
                break;
            };
            if kind.frame != 0 && count < MAX_METHODS {
                frames[count] = kind.frame;
                count += 1;
            }
            at = match kind.next {
                0 => break,
                next if kind.is_list => {
                    // An array has its method table and its length first.
                    let Some(array) = copied.object(words[next]) else { break };
                    array[2]
                }
                next => words[next],
            };
        }
        if count == 0 { Chain::Nothing } else { Chain::Of(frames, count) }
    }

    /// Whether this is a method table: its class knows it. Of several instantiations the class knows one, which the others name.
    fn is_table(&self, table: u64) -> bool {
        if self.types.contains_key(&table) {
            return true;
        }
        let class_of = |table: u64| {
            let is_aligned = table.is_multiple_of(8) && table >= 1 << 16;
            object(table.wrapping_add(8 * self.layout.class as u64)).filter(|_| is_aligned).map(|words| words[0])
        };
        let (mut table, mut class) = (table, class_of(table));
        if let Some(canonical) = class.filter(|class| class & 1 != 0) {
            table = canonical - 1;
            class = class_of(table);
        }
        class
            .and_then(|class| object(class.wrapping_add(8 * self.layout.table as u64)))
            .is_some_and(|words| words[0] == table)
    }
}

/// Memory that was read at once. No object moves meanwhile, but others may be made there: an object is older than who leads to it, so it is
/// looked for above that alone, which was copied later.
#[derive(Debug)]
struct Copied {
    from: u64,
    words: [u64; TOGETHER],
    last: u64,
}

impl Copied {
    const NOTHING: Self = Self { from: 0, words: [0; TOGETHER], last: u64::MAX };

    /// As [`object`], for one to which the last one leads; mostly without a system call.
    fn object(&mut self, address: u64) -> Option<[u64; WORDS]> {
        if !address.is_multiple_of(8) {
            return None;
        }
        let place = if address > self.last { usize::try_from((address - self.from) / 8).ok() } else { None };
        self.last = address;
        if let Some(words) = place.and_then(|place| self.words.get(place..)?.first_chunk()) {
            return Some(*words);
        }
        let mut contents = [[0; TOGETHER]];
        if memory::read_each(&[address], &mut contents) == 0 {
            return None;
        }
        (self.from, self.words) = (address, contents[0]);
        self.words.first_chunk().copied()
    }
}

/// The words at an address, as far as they are mapped: the first one is.
fn object(address: u64) -> Option<[u64; WORDS]> {
    let mut contents = [[0; WORDS]];
    (address.is_multiple_of(8) && memory::read_each(&[address], &mut contents) != 0).then_some(contents[0])
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::ptr;

    use super::*;

    fn at(object: &[u64]) -> u64 {
        object.as_ptr() as u64
    }

    /// Keeps it where no thread's stack is near: what is near one is no object.
    fn keep<T>(value: T) -> &'static mut T {
        const FAR: *mut c_void = ptr::without_provenance_mut(0x2000_0000_0000);
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, where the kernel finds some if it has none there.
        let place = unsafe { libc::mmap(FAR, size_of::<T>(), access, flags, -1, 0) };
        assert_ne!(place, libc::MAP_FAILED);
        let place = place.cast::<T>();
        // SAFETY: it has room for one, and nobody else knows of it.
        unsafe { place.write(value) };
        // SAFETY: as above, and it stays.
        unsafe { &mut *place }
    }

    /// A class and its method table, which name each other.
    fn class() -> &'static [[u64; 16]; 2] {
        let both = keep([[0; 16]; 2]);
        let (table, class) = (at(&both[0]), at(&both[1]));
        both[0][5] = class;
        both[1][2] = table;
        both
    }

    #[test]
    fn what_was_copied_before_who_leads_to_it_is_copied_anew() {
        let objects = Box::leak(Box::new([1_u64; 64]));
        let (first, second) = (at(&objects[..8]), at(&objects[8..16]));
        let mut copied = Copied::NOTHING;
        let word = |copied: &mut Copied, address| copied.object(address).map(|words| words[0]);
        assert_eq!(word(&mut copied, first), Some(1));
        objects[..16].fill(2);
        std::hint::black_box(&objects);
        assert_eq!(word(&mut copied, second), Some(1));
        assert_eq!([first, 8, 0].map(|address| word(&mut copied, address)), [Some(2), None, None]);
    }

    #[test]
    fn a_chain_is_followed_from_the_box_whose_context_it_is() {
        const CONTEXT: u64 = 0x1234_5678;
        let [known, box_of, action, list, other] = [(); 5].map(|()| class());
        assert!(learn_layout(16, 32, &[known, box_of].map(|class| at(&class[0]))));
        // An instantiation that is not its class's own.
        let instantiation = keep([0_u64; 16]);
        instantiation[5] = at(&box_of[0]) + 1;
        let object = |table: u64, words: &[(usize, u64)]| {
            let object = keep([0_u64; 16]);
            object[0] = table;
            words.iter().for_each(|(at, word)| object[*at] = *word);
            at(object)
        };
        let outer = object(at(&box_of[0]), &[(2, 1)]);
        let array = object(0, &[(1, 1), (2, outer)]);
        let several = object(at(&list[0]), &[(1, array)]);
        let goes_on = object(at(&action[0]), &[(1, several)]);
        let inner = object(at(instantiation), &[(2, CONTEXT), (4, goes_on)]);
        let decoy = object(at(&other[0]), &[(2, CONTEXT)]);
        let words = [7, decoy, 0x10_0000, inner + 1, inner];
        let found = |all| chain(words.into_iter(), CONTEXT, all);
        // Each method table is explained when it is met.
        for (table, frame, next, is_list, is_box) in [
            (at(&other[0]), 0, 0, false, false),
            (at(instantiation), 71, 0, false, true),
            (at(&action[0]), 0, 8, false, false),
            (at(&list[0]), 0, 8, true, false),
            (at(&box_of[0]), 72, 0, false, true),
        ] {
            assert_eq!(found(false), Chain::Unknown(table));
            learn_type(table, frame, next, is_list, is_box);
        }
        assert_eq!((offset_of(goes_on, several), offset_of(goes_on, 3)), (Some(8), None));
        let methods = |chain| if let Chain::Of(frames, count) = chain { frames[..count].to_vec() } else { Vec::new() };
        assert_eq!(methods(found(false)), [71, 72]);
        assert_eq!(chain(words.into_iter(), CONTEXT + 8, false), Chain::Nothing);
        forget_type(at(&list[0]));
        assert_eq!(found(false), Chain::Unknown(at(&list[0])));
        assert_eq!(methods(found(true)), [71]);
    }
}
