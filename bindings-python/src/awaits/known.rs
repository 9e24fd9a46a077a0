//! What is known of the types that chains of awaits are made of: functions of theirs in C, which run no code of the program.

use std::ffi::{CStr, c_void};
use std::mem::transmute;

use crate::awaits::layout::{
    CoroutineLayout, GETSET_GET, GETSET_SIZE, METHOD_SIZE, ML_FLAGS, ML_METH, TP_GETSET, TP_METHODS,
};
use crate::stack::memory::{Memory, Object, Probed};

/// `getter`: an object and a closure, which none of these has.
pub(crate) type Getter = unsafe extern "C" fn(Object, *mut c_void) -> *mut u8;
/// A method without arguments.
pub(crate) type NoArguments = unsafe extern "C" fn(Object, *mut c_void) -> *mut u8;

/// `METH_NOARGS`.
const NO_ARGUMENTS: u32 = 4;
/// Entries of a type's tables that are looked at.
const MOST_ENTRIES: usize = 256;

/// The types, in the main interpreter; none of them is ever freed.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) layout: CoroutineLayout,
    /// `coroutine`.
    pub(crate) coroutine: Object,
    /// Coroutines, generators and asynchronous ones, and what says what one of these waits for.
    pub(super) frames: [(Object, Getter); 3],
    /// Those that only wait for something else.
    pub(super) holders: [Object; 4],
    /// What is awaited of a future; null without `_asyncio`, as the next.
    pub(super) future_iter: Object,
    pub(super) task: Object,
    /// `Task.get_coro`.
    pub(super) coroutine_of_task: Option<NoArguments>,
    pub(super) sleep: Option<Sleep>,
}

/// `asyncio.sleep`, by whose timer it is known when a coroutine was due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sleep {
    /// Its code object.
    pub(crate) code: Object,
    /// Which of its variables holds the timer.
    pub(crate) variable: usize,
    /// `asyncio.TimerHandle`, where such an object has its time, and the class of that.
    pub(crate) timer: Object,
    pub(crate) when: usize,
    pub(crate) float: Object,
}

// SAFETY: addresses of objects that are never freed, and of code.
unsafe impl Send for Known {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Known {}

impl Known {
    /// The types in the order of coroutine, generator, asynchronous generator, then four holders, then what is awaited of a
    /// future, and `Task`, both null without `_asyncio`.
    /// `None`: they have not the functions that are called.
    pub(crate) fn of(layout: CoroutineLayout, types: [Object; 8], task: Object, sleep: Option<Sleep>) -> Option<Self> {
        let [coroutine, generator, asynchronous, asend, athrow, wrapper, anext, future_iter] = types;
        let coroutine_of_task = method(task, c"get_coro").filter(|get| get.flags & 0xFF == NO_ARGUMENTS);
        // SAFETY: a method with these flags is such a function.
        let function = |get: Method| unsafe { transmute::<Object, NoArguments>(get.function) };
        Some(Self {
            layout,
            coroutine,
            frames: [
                (coroutine, getter(coroutine, c"cr_await")?),
                (generator, getter(generator, c"gi_yieldfrom")?),
                (asynchronous, getter(asynchronous, c"ag_await")?),
            ],
            holders: [asend, athrow, wrapper, anext],
            future_iter,
            task,
            coroutine_of_task: coroutine_of_task.map(function),
            sleep,
        })
    }
}

/// A method of a type that is written in C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Method {
    /// Where the pointer to its function is.
    pub(crate) place: Object,
    function: Object,
    pub(crate) flags: u32,
}

/// The method of this name that `class` itself has. Null has none.
pub(crate) fn method(class: Object, name: &CStr) -> Option<Method> {
    let entry = entry(class, TP_METHODS, METHOD_SIZE, name)?;
    // SAFETY: an entry was found there, and such tables are static.
    let function = unsafe { Probed::pointer(entry, ML_METH) }?;
    // SAFETY: as above.
    let flags = unsafe { Probed::half(entry, ML_FLAGS) }?;
    Some(Method { place: entry.wrapping_add(ML_METH), function, flags })
}

/// The getter of this name that `class`, written in C, itself has.
pub(super) fn getter(class: Object, name: &CStr) -> Option<Getter> {
    let entry = entry(class, TP_GETSET, GETSET_SIZE, name)?;
    // SAFETY: an entry was found there, and such tables are static.
    let get = unsafe { Probed::pointer(entry, GETSET_GET) }.filter(|get| !get.is_null())?;
    // SAFETY: what this field points to.
    Some(unsafe { transmute::<Object, Getter>(get) })
}

/// The entry of this name in a table of `class`, which ends with one without a name.
fn entry(class: Object, table: usize, size: usize, name: &CStr) -> Option<Object> {
    let name = name.to_bytes_with_nul();
    // SAFETY: nobody unmaps what types are made of, and Probed asks.
    let table = unsafe { Probed::pointer(class, table) }?;
    for number in 0..MOST_ENTRIES {
        let entry = table.wrapping_add(number * size);
        // SAFETY: as above.
        let found = unsafe { Probed::pointer(entry, 0) }.filter(|found| !found.is_null())?;
        let same = name.iter().enumerate().all(|(at, byte)| {
            let mut read = 0_u8;
            // SAFETY: as above, and there is room for a byte.
            unsafe { Probed::copy(found, at, &raw mut read, 1) && read == *byte }
        });
        if same {
            return Some(entry);
        }
    }
    None
}
