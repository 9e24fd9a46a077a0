//! What a wait of the interpreter's own was for: its calls of libc do not tell a sleep from a wait for a Mutex, but the method
//! does that runs.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use rb_sys::{ID, VALUE};
use spanprof_core::State;

use crate::stack::guard::IS_GUARDED;
use crate::value::id;

unsafe extern "C" {
    fn pyroscope_frame_method() -> ID;
    fn pyroscope_receiver_has_type(word: c_int, data_type: VALUE) -> c_int;
}

/// Methods that wait, by what for. They are asked where the interpreter waited for a condition, and, but for `select`, where it
/// waited for descriptors: before Ruby 3.3 one of its threads waits for the pipe of its signals instead.
const METHODS: [(State, &[&str]); 4] = [
    (State::Sleep, &["sleep", "select"]),
    (
        State::Lock,
        &[
            "join",
            "value",
            "pop",
            "shift",
            "deq",
            "push",
            "enq",
            "<<",
            "lock",
            "synchronize",
            "enter",
            "wait_for_cond",
            "take",
        ],
    ),
    (State::Child, &["wait", "wait2", "waitpid", "waitpid2", "waitall", "system", "`"]),
    (State::Name, &["getaddrinfo", "getnameinfo", "getaddress", "gethostbyname", "foreach", "ip", "tcp", "udp"]),
];

struct Known {
    methods: Vec<(ID, State)>,
    sleep: ID,
    select: ID,
    /// What each Mutex is of, and in which of its words that stands.
    mutex_type: VALUE,
    type_word: c_int,
    /// Where the interpreter's code is.
    interpreter: Range<usize>,
}

static KNOWN: OnceLock<Known> = OnceLock::new();

/// Learns what must be known, once. With the GVL held.
pub(crate) fn learn() {
    KNOWN.get_or_init(|| {
        let of = |(state, names): (State, &'static [&str])| names.iter().map(move |name| (id(name), state));
        // SAFETY: called with the GVL held; it lives as long as it stands here.
        let mutex = unsafe { rb_sys::rb_mutex_new() };
        // SAFETY: a data object.
        let mutex_type = unsafe { rb_sys::macros::RTYPEDDATA_TYPE(mutex) }.addr() as VALUE;
        let words = std::ptr::with_exposed_provenance::<VALUE>(mutex as usize);
        // SAFETY: objects have five words at least.
        let is_there = |word: &c_int| unsafe { *words.offset(*word as isize) } == mutex_type;
        let type_word = (2..5).find(is_there).unwrap_or_default();
        Known {
            methods: METHODS.into_iter().flat_map(of).collect(),
            sleep: id("sleep"),
            select: id("select"),
            mutex_type,
            type_word,
            interpreter: interpreter(),
        }
    });
}

/// What a wait was for that was called from `caller`, by a thread of Ruby's which is not collecting garbage.
pub(crate) fn state(state: State, caller: usize) -> State {
    let Some(known) = KNOWN.get() else { return state };
    let may_be_another = matches!(state, State::Lock | State::Io | State::Sleep);
    if !may_be_another || !known.interpreter.contains(&caller) || !IS_GUARDED.load(Ordering::Relaxed) {
        return state;
    }
    // SAFETY: reads behind the guard.
    let method = unsafe { pyroscope_frame_method() };
    // SAFETY: as above. `Mutex#sleep` waits for a signal of a ConditionVariable.
    if method == known.sleep && unsafe { pyroscope_receiver_has_type(known.type_word, known.mutex_type) } != 0 {
        return State::Lock;
    }
    if method == known.select && state != State::Lock {
        return state;
    }
    known.methods.iter().find(|(known, _)| *known == method).map_or(state, |(_, state)| *state)
}

/// The range of the module that the interpreter is in.
fn interpreter() -> Range<usize> {
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, range: *mut c_void) -> c_int {
        // SAFETY: valid for the call.
        let info = unsafe { &*info };
        // SAFETY: what is passed below, which holds an address in the module that is looked for.
        let range = unsafe { &mut *range.cast::<Range<usize>>() };
        let (mut start, mut end) = (usize::MAX, 0);
        for number in 0..info.dlpi_phnum {
            // SAFETY: there are so many.
            let header = unsafe { &*info.dlpi_phdr.add(usize::from(number)) };
            if header.p_type == libc::PT_LOAD {
                let first = info.dlpi_addr as usize + header.p_vaddr as usize;
                (start, end) = (start.min(first), end.max(first + header.p_memsz as usize));
            }
        }
        let is_it = (start..end).contains(&range.start);
        if is_it {
            *range = start..end;
        }
        c_int::from(is_it)
    }
    let inside = rb_sys::rb_profile_frames as *const () as usize;
    let mut range = inside..inside;
    // SAFETY: the callback takes what is passed on here.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut range).cast()) };
    range
}
