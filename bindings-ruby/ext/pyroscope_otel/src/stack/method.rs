//! What a wait of the interpreter's own was for: its calls of libc do not tell a sleep from a wait for a Mutex, but the method
//! does that runs.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use rb_sys::VALUE;
use spanprof_core::State;

use crate::stack::guard::IS_GUARDED;

unsafe extern "C" {
    fn pyroscope_frame_method() -> VALUE;
    fn pyroscope_receiver_has_type(word: c_int, data_type: VALUE) -> c_int;
    fn pyroscope_receiver_is_io() -> c_int;
}

/// Methods that wait, and what for. They are asked where the interpreter waited for a condition, and, but for `select`, where it
/// waited for descriptors: before Ruby 3.3 one of its threads waits for the pipe of its signals instead.
pub(crate) const METHODS: [(&str, State); 30] = [
    ("sleep", State::Sleep),
    ("select", State::Sleep),
    ("join", State::Lock),
    ("value", State::Lock),
    ("pop", State::Lock),
    ("shift", State::Lock),
    ("deq", State::Lock),
    ("push", State::Lock),
    ("enq", State::Lock),
    ("<<", State::Lock),
    ("lock", State::Lock),
    ("synchronize", State::Lock),
    ("enter", State::Lock),
    ("wait_for_cond", State::Lock),
    ("take", State::Lock),
    ("wait", State::Child),
    ("wait2", State::Child),
    ("waitpid", State::Child),
    ("waitpid2", State::Child),
    ("waitall", State::Child),
    ("system", State::Child),
    ("`", State::Child),
    ("getaddrinfo", State::Name),
    ("getnameinfo", State::Name),
    ("getaddress", State::Name),
    ("gethostbyname", State::Name),
    ("foreach", State::Name),
    ("ip", State::Name),
    ("tcp", State::Name),
    ("udp", State::Name),
];
const SLEEP: usize = 0;
const SELECT: usize = 1;
const WAIT: usize = 15;
const _: () = assert!(matches!(METHODS[WAIT].0.as_bytes(), b"wait"));

/// The methods as Ruby numbers names, in the same order; 0: not learnt yet.
static NUMBERS: [AtomicU64; METHODS.len()] = [const { AtomicU64::new(0) }; METHODS.len()];
/// What each Mutex is of, and in which of its words that stands.
static MUTEX_TYPE: AtomicU64 = AtomicU64::new(0);
static TYPE_WORD: AtomicI32 = AtomicI32::new(0);
/// Where the interpreter's code is.
static INTERPRETER: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Notes what must be known of this Ruby. With the GVL held.
pub(crate) fn learn(number: impl Fn(&str) -> u64, (mutex_type, word): (VALUE, c_int), interpreter: &Range<usize>) {
    for ((name, _), place) in METHODS.iter().zip(&NUMBERS) {
        place.store(number(name), Ordering::Relaxed);
    }
    MUTEX_TYPE.store(mutex_type, Ordering::Relaxed);
    TYPE_WORD.store(word, Ordering::Relaxed);
    INTERPRETER[0].store(interpreter.start, Ordering::Relaxed);
    INTERPRETER[1].store(interpreter.end, Ordering::Relaxed);
}

/// What a wait was for that was called from `caller`, by a thread of Ruby's which is not collecting garbage.
pub(crate) fn state(state: State, caller: usize) -> State {
    let [start, end] = [&INTERPRETER[0], &INTERPRETER[1]].map(|place| place.load(Ordering::Relaxed));
    let may_be_another = matches!(state, State::Lock | State::Io | State::Sleep);
    if !may_be_another || !(start..end).contains(&caller) || !IS_GUARDED.load(Ordering::Relaxed) {
        return state;
    }
    // SAFETY: reads behind the guard.
    let method = unsafe { pyroscope_frame_method() };
    let known = NUMBERS.iter().position(|number| method != 0 && number.load(Ordering::Relaxed) == method);
    match known {
        // `Mutex#sleep` waits for a signal of a ConditionVariable.
        Some(SLEEP) if is_of_mutex() => State::Lock,
        Some(SELECT) if state != State::Lock => state,
        // IO#wait and IO.foreach are called as Process.wait and Addrinfo.foreach are; the latter waits for no descriptor.
        Some(known) if state == State::Io && METHODS[known].1 == State::Name => state,
        Some(WAIT) if state == State::Io && is_of_io() => state,
        Some(known) => METHODS[known].1,
        None => state,
    }
}

/// Whether the method's receiver is an IO.
fn is_of_io() -> bool {
    // SAFETY: reads behind the guard.
    unsafe { pyroscope_receiver_is_io() != 0 }
}

/// Whether the method's receiver is a Mutex.
fn is_of_mutex() -> bool {
    let (word, mutex_type) = (TYPE_WORD.load(Ordering::Relaxed), MUTEX_TYPE.load(Ordering::Relaxed));
    // SAFETY: reads behind the guard.
    word != 0 && unsafe { pyroscope_receiver_has_type(word, mutex_type) } != 0
}
