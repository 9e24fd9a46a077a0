//! Looking a ContextVar up in a thread's current context, from a signal handler.
//!
//! A context holds its variables in a HAMT: a persistent tree of 32-way nodes, picked by five bits of the key's hash
//! a level. Nothing in a published tree ever changes; `ContextVar.set` and every switch of contexts store a new
//! pointer before they let the old tree go. A handler on the same thread therefore sees one whole tree, the old or the
//! new one, and that tree is alive until the handler returns. It must not take references: another thread may hold the
//! GIL and change the same counters.
//!
//! There are three kinds of nodes, told by their types, which no header names. The self-test reads two of them out of
//! contexts that must have them; what is neither is the third.

use std::ptr;

use crate::stack::layout::{CONTEXT_VARS, HAMT_ROOT, OB_SIZE, OB_TYPE, VAR_HASH};
use crate::stack::memory::{Memory, Object};

/// More levels than a 32-bit hash can have.
const MAX_DEPTH: usize = 8;
/// More keys than ever collide.
const MAX_COLLISIONS: usize = 4_096;

/// `PyHamtNode_Bitmap`: which of 32 places are taken, then key and value of each; a null key means a subtree.
const BITMAP: usize = 24;
const BITMAP_SLOTS: usize = 32;
/// `PyHamtNode_Array`: 32 subtrees.
const ARRAY_SLOTS: usize = 16;
/// `PyHamtNode_Collision`: keys and values one after the other, all of one hash.
const COLLISION_SLOTS: usize = 32;

/// Addresses of the node types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeTypes {
    pub(crate) bitmap: Object,
    pub(crate) array: Object,
}

/// A ContextVar: its address and its hash as a HAMT folds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    variable: Object,
    hash: u32,
}

impl Key {
    /// The key of `variable`.
    ///
    /// # Safety
    /// `variable` must be a ContextVar of an interpreter whose layout was checked, and never die.
    pub(crate) unsafe fn of(variable: Object) -> Self {
        // SAFETY: a ContextVar has its hash there.
        let hash = unsafe { ptr::read(variable.wrapping_add(VAR_HASH).cast::<u64>()) };
        #[expect(clippy::cast_possible_truncation, reason = "the fold that hamt_hash() does")]
        let folded = (hash as u32) ^ ((hash >> 32) as u32);
        Self { variable, hash: if folded == u32::MAX { u32::MAX - 1 } else { folded } }
    }
}

impl NodeTypes {
    /// The value of `key` in the context at `context`, null if it has none.
    ///
    /// Hot: 4 to 9 ns.
    ///
    /// # Safety
    /// `context` must be null or a live `PyContext` that no other thread runs in, or M [`Probed`](crate::stack::memory::Probed).
    #[inline]
    pub(crate) unsafe fn find<M: Memory>(self, context: Object, key: Key) -> Object {
        if context.is_null() {
            return ptr::null();
        }
        // SAFETY: a live context has its HAMT there.
        let Some(hamt) = (unsafe { M::pointer(context, CONTEXT_VARS) }) else {
            return ptr::null();
        };
        if hamt.is_null() {
            return ptr::null();
        }
        // SAFETY: and that has its root there.
        let root = unsafe { M::pointer(hamt, HAMT_ROOT) };
        // SAFETY: nodes of a live HAMT are alive.
        root.and_then(|root| unsafe { self.find_below::<M>(root, key) }).unwrap_or(ptr::null())
    }

    /// The value; `None` without one, and where a load failed.
    ///
    /// # Safety
    /// `node` must be null or a HAMT node whose tree is alive, or M [`Probed`](crate::stack::memory::Probed).
    #[inline]
    unsafe fn find_below<M: Memory>(self, mut node: Object, key: Key) -> Option<Object> {
        let mut bits = key.hash;
        for _ in 0..MAX_DEPTH {
            if node.is_null() {
                return None;
            }
            // SAFETY: a node is an object.
            let kind = unsafe { M::pointer(node, OB_TYPE) }?;
            let place = bits & 31;
            if kind == self.bitmap {
                // SAFETY: a bitmap node has its bitmap there.
                let taken = unsafe { M::half(node, BITMAP) }?;
                let bit = 1_u32 << place;
                if taken & bit == 0 {
                    return None;
                }
                let slot = BITMAP_SLOTS + 16 * (taken & (bit - 1)).count_ones() as usize;
                // SAFETY: there is a pair for each bit set, and `bit` is.
                let [found, value] = unsafe { M::words(node, [slot, slot + 8]) }?;
                if found != 0 {
                    return (found as Object == key.variable).then_some(value as Object);
                }
                node = value as Object;
            } else if kind == self.array {
                // SAFETY: an array node has 32 pointers and `place` is below 32.
                node = unsafe { M::pointer(node, ARRAY_SLOTS + 8 * place as usize) }?;
            } else {
                // SAFETY: there are three kinds of nodes.
                return unsafe { find_in_collision::<M>(node, key) };
            }
            bits >>= 5;
        }
        None
    }
}

/// # Safety
/// `node` must be a live collision node, or M [`Probed`](crate::stack::memory::Probed).
#[cold]
unsafe fn find_in_collision<M: Memory>(node: Object, key: Key) -> Option<Object> {
    // SAFETY: it is an object with a length, of keys and values together.
    let length = unsafe { M::pointer(node, OB_SIZE) }?.addr().min(2 * MAX_COLLISIONS);
    for pair in 0..length / 2 {
        let slot = COLLISION_SLOTS + 16 * pair;
        // SAFETY: `pair` is within the length.
        let [found, value] = unsafe { M::words(node, [slot, slot + 8]) }?;
        if found as Object == key.variable {
            return Some(value as Object);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::memory::Plain;

    /// Words laid out as objects: [refcount, type, …].
    fn address(words: &[u64]) -> Object {
        words.as_ptr().cast()
    }

    const TYPES: (u64, u64, u64) = (0x10, 0x20, 0x30);

    fn types() -> NodeTypes {
        NodeTypes { bitmap: TYPES.0 as Object, array: TYPES.1 as Object }
    }

    fn key(variable: u64, hash: u32) -> Key {
        Key { variable: variable as Object, hash }
    }

    #[test]
    fn finds_through_array_bitmap_and_collision_nodes() {
        let hash = 0b00011_00101;
        let collision = [1, TYPES.2, 4, 7, 0xA0, 0xA1, 0xB0, 0xB1];
        let bitmap = [1, TYPES.0, 4, (1 << 3) | (1 << 1), 0xC0, 0xC1, 0, address(&collision) as u64];
        let mut array = [0_u64; 2 + 32];
        array[1] = TYPES.1;
        array[2 + 5] = address(&bitmap) as u64;
        let find = |key| {
            // SAFETY: the nodes above are laid out as CPython's.
            unsafe { types().find_below::<Plain>(address(&array), key) }.map_or(0, |value| value as u64)
        };
        assert_eq!(find(key(0xB0, hash)), 0xB1);
        assert_eq!(find(key(0xA0, hash)), 0xA1);
        assert_eq!(find(key(0xD0, hash)), 0, "not among the keys that collide");
        assert_eq!(find(key(0xC0, 0b00001_00101)), 0xC1);
        assert_eq!(find(key(0xD0, 0b00001_00101)), 0, "another key in its place");
        assert_eq!(find(key(0xC0, 0b00010_00101)), 0, "no bit");
        assert_eq!(find(key(0xC0, 0)), 0, "no subtree");
    }

    #[test]
    fn the_hash_is_folded_as_cpython_does() {
        for (hash, folded) in [(0x0000_0001_0000_0002_u64, 3), (0xFFFF_FFFF_0000_0000, u32::MAX - 1)] {
            let mut variable = [0_u64; 8];
            variable[VAR_HASH / 8] = hash;
            // SAFETY: laid out as a ContextVar.
            assert_eq!(unsafe { Key::of(address(&variable)) }.hash, folded);
        }
    }
}
