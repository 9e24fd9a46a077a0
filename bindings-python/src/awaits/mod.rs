//! Awaits: how long a coroutine was suspended, and where, measured where it goes on.
//!
//! At that instant it runs on its own thread, in its own context, and its chain of awaits is still whole. So nothing is enumerated, no
//! timer runs in the program's loop, no thread looks in. [`hooks`] stand in the places of the functions by which loops continue
//! coroutines; [`steps`] are what they do: a [`clock`] when one is suspended ([`slots`], [`thread`]), another when it goes on, and for some
//! ([`rate`]) a [`sample`] with the span that is current then and the [`chain`] of what was awaited. [`greenlets`] do the same where they
//! switch. Threads [share](shared) most of it. [`layout`] and [`known`] are what is known of the interpreter for that.
//!
//! All of it runs in calls of the program's, with the GIL. Subinterpreters are passed by and never touched.

mod chain;
mod clock;
pub(crate) mod greenlets;
mod hooks;
pub(crate) mod known;
pub(crate) mod layout;
mod rate;
mod sample;
mod shared;
mod slots;
mod steps;
mod thread;

use self::known::Known;
pub(crate) use self::thread::Seen;
use crate::stack::interpreter::CPython;
use crate::stack::memory::Object;

/// Measures awaits from now on. False: the type of coroutines does not look as is known, and nothing was changed. The GIL is held.
pub(crate) fn start(known: &'static Known, runtime: &'static CPython) -> bool {
    if !hooks::install(known) {
        return false;
    }
    greenlets::begin();
    steps::begin(known, runtime);
    true
}

/// Measures none any more, and puts the interpreter's functions back. Any number of times. The GIL is held.
pub(crate) fn stop() {
    steps::end();
    hooks::uninstall();
}

/// Lets all suspensions that end on this thread meanwhile be told instead of sampled. For the self-test.
pub(crate) fn watch<T>(during: impl FnOnce() -> T) -> (T, Vec<Seen>) {
    steps::watch(during)
}

/// Whether it is known of a coroutine that it is suspended. For the self-test.
pub(crate) fn is_known(coroutine: Object) -> bool {
    steps::is_known(coroutine)
}
