//! Panics of our own threads, as text: the program that we run in is told, and goes on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body`; the error is what its panic says. What it had changed by then stays as it is.
pub(crate) fn caught<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| text_of(panic.as_ref()))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no text").to_owned()
}
