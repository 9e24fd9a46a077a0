//! What ld.so says of the library that an address is in, and the rule there by the library's own memory: for libraries that may be closed,
//! as at one address there may be another one by now than the one whose file was read.
//!
//! **Functions called in the handler:** `_dl_find_object`, of glibc 2.35 and later, which takes no lock and may be called in a signal handler.
//! Memory read: the headers of the library and its `.eh_frame`, which stay while a function of it is on the stack. So only a return address
//! of the calling thread may be asked for that is known to be one.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{mem, ptr, slice};

use crate::stack::call_frames::{self, number};
use crate::stack::eh_frame::{Cfa, Row};

/// `struct dl_find_object`.
#[repr(C)]
struct Object {
    flags: u64,
    start: *const u8,
    end: *const u8,
    link_map: *const LinkMap,
    /// The segment PT_GNU_EH_FRAME: `.eh_frame_hdr`.
    frames: *const u8,
    reserved: [u64; 7],
}

const _: () = assert!(size_of::<Object>() == 96);

/// How `struct link_map` begins.
#[repr(C)]
struct LinkMap {
    address: u64,
    name: *const c_char,
}

type Find = unsafe extern "C" fn(*mut c_void, *mut Object) -> c_int;

/// Null where there is none.
static FIND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// A part of an ELF file in memory, which begins at this address of the file's own.
struct Segment {
    bytes: &'static [u8],
    address: u64,
    /// What the file's address 0 is in memory.
    base: u64,
}

/// Asks where the function is. Not in the handler.
pub(crate) fn prepare() {
    // SAFETY: a string.
    let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    FIND.store(find, Ordering::Relaxed);
}

/// Whether ld.so can be asked. Async-signal-safe.
#[inline]
pub(crate) fn answers() -> bool {
    !FIND.load(Ordering::Relaxed).is_null()
}

/// The rule at `pc`, an unknown one where the library does not tell, and where the library's name is. `None`: no library is there.
/// Async-signal-safe; 10 ns where there is none, else some hundred.
///
/// # Safety
/// `pc` is within a call that the calling thread is in, or nowhere.
pub(crate) unsafe fn row_at(pc: u64) -> Option<(Row, *const c_char)> {
    let object = find(pc)?;
    // SAFETY: the caller's promise: what is on the stack is loaded.
    let row = unsafe { row_in(&object, pc) };
    // SAFETY: as above; ld.so describes what is loaded.
    let name = unsafe { object.link_map.as_ref() }.map_or(ptr::null(), |link_map| link_map.name);
    Some((row.unwrap_or(Row { pc: 0, offset: 0, saved_rbp: 0, cfa: Cfa::Unknown }), name))
}

fn find(pc: u64) -> Option<Object> {
    let find = FIND.load(Ordering::Relaxed);
    if find.is_null() {
        return None;
    }
    // SAFETY: the function of this name has this type.
    let find: Find = unsafe { mem::transmute(find) };
    // SAFETY: numbers and addresses.
    let mut object: Object = unsafe { mem::zeroed() };
    // SAFETY: any address may be asked about.
    let result = unsafe { find(address(pc).cast_mut().cast(), &raw mut object) };
    (result == 0).then_some(object)
}

/// # Safety
/// The object is loaded.
unsafe fn row_in(object: &Object, pc: u64) -> Option<Row> {
    // SAFETY: the caller's promise.
    let segment = unsafe { segment_of(object) }?;
    let header = object.frames as u64;
    let at = header.checked_sub(segment.base)?.checked_sub(segment.address)?;
    let entry = entry_of(segment.bytes.get(usize::try_from(at).ok()?..)?, pc.wrapping_sub(header).cast_signed())?;
    let Some(entry) = entry else {
        return Some(Row { pc: 0, offset: 0, saved_rbp: 0, cfa: Cfa::Nothing });
    };
    let at = usize::try_from(at.checked_add_signed(entry)?).ok()?;
    let wanted = u32::try_from(pc.checked_sub(segment.base)?).ok()?;
    let mut found = None;
    call_frames::entry(segment.bytes, segment.address, at, &mut |row| {
        if row.pc <= wanted {
            found = Some(row);
        }
    })?;
    found
}

/// The loaded segment with the object's `.eh_frame_hdr`.
///
/// # Safety
/// The object is loaded.
unsafe fn segment_of(object: &Object) -> Option<Segment> {
    const PAGE: usize = 4_096;
    const LOADED: u64 = 1;
    /// An `Elf64_Phdr`.
    const SIZE: usize = 56;
    if object.start.is_null() || object.frames.is_null() {
        return None;
    }
    // SAFETY: an object begins with its headers, in a page of its own.
    let page = unsafe { slice::from_raw_parts(object.start, PAGE) };
    if page.get(..4)? != b"\x7fELF" {
        return None;
    }
    let (at, count) = (usize::try_from(number(page, 0x20, 8)?).ok()?, usize::try_from(number(page, 0x38, 2)?).ok()?);
    let headers = page.get(at..at.checked_add(count.checked_mul(SIZE)?)?)?.as_chunks::<SIZE>().0;
    let start = object.start as u64;
    let mut base = None;
    for header in headers.iter().filter(|header| number(*header, 0, 4) == Some(LOADED)) {
        let (virtual_address, size) = (number(header, 0x10, 8)?, number(header, 0x20, 8)?);
        // The first is where the object begins, whole pages of it.
        let base = *base.get_or_insert(start.wrapping_sub(virtual_address & !(PAGE as u64 - 1)));
        let first = base.wrapping_add(virtual_address);
        if (object.frames as u64).checked_sub(first).is_some_and(|offset| offset < size) {
            // SAFETY: a segment that is loaded, of which so many bytes are the file's.
            let bytes = unsafe { slice::from_raw_parts(address(first), usize::try_from(size).ok()?) };
            return Some(Segment { bytes, address: virtual_address, base });
        }
    }
    None
}

/// Searches the table of `.eh_frame_hdr`: the entry of the last function that begins at `pc` or before it, all relative to the header.
/// `Some(None)`: none does. `None`: it has no table of the kind that linkers make.
fn entry_of(header: &[u8], pc: i64) -> Option<Option<i64>> {
    const PAIR: usize = 8;
    // Version 1; pointers relative to their place, a number, and pairs relative to the header, of four bytes each.
    if header.get(..4)? != [1, 0x1b, 0x03, 0x3b] {
        return None;
    }
    let count = usize::try_from(number(header, 8, 4)?).ok()?;
    let pairs = header.get(12..12_usize.checked_add(count.checked_mul(PAIR)?)?)?.as_chunks::<PAIR>().0;
    let half = |pair: &[u8; PAIR], at: usize| {
        i64::from(i32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]]))
    };
    let after = pairs.partition_point(|pair| half(pair, 0) <= pc);
    Some(after.checked_sub(1).and_then(|before| pairs.get(before)).map(|pair| half(pair, 4)))
}

#[expect(clippy::cast_possible_truncation, reason = "x86-64 only")]
fn address(address: u64) -> *const u8 {
    ptr::with_exposed_provenance(address as usize)
}
