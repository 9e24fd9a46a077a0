//! Strings, Symbols and Hashes of Strings that the program passes.

use magnus::r_hash::ForEach;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{Error, RHash, RString, Ruby, Symbol, Value};

use crate::errors::{guard, not_allowed};

/// Does `each` for the pairs of a Hash, until one fails. What magnus' `foreach` is told of an error it raises by itself.
pub(crate) fn for_each_pair(
    ruby: &Ruby,
    hash: RHash,
    mut each: impl FnMut(Value, Value) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut outcome = Ok(());
    hash.foreach(|name: Value, value: Value| {
        outcome = guard(ruby, || each(name, value));
        Ok(if outcome.is_ok() { ForEach::Continue } else { ForEach::Stop })
    })?;
    outcome
}

/// Names and values of a Hash of Strings.
pub(crate) fn pairs(ruby: &Ruby, field: &str, tags: RHash) -> Result<Vec<(String, String)>, Error> {
    let mut pairs = Vec::new();
    for_each_pair(ruby, tags, |name, value| {
        pairs.push((text(ruby, field, name)?, text(ruby, field, value)?));
        Ok(())
    })?;
    Ok(pairs)
}

/// A String as UTF-8, where bytes that are none become U+FFFD.
pub(crate) fn text(ruby: &Ruby, field: &str, value: Value) -> Result<String, Error> {
    match RString::from_value(value) {
        // SAFETY: the bytes are copied before Ruby runs again.
        Some(text) => Ok(String::from_utf8_lossy(unsafe { text.as_slice() }).into_owned()),
        None => Err(not_allowed(ruby, field, value, "a String")),
    }
}

/// A Symbol or a String.
pub(crate) fn symbol_or_string(value: Value) -> Option<String> {
    let text = match Symbol::from_value(value) {
        Some(symbol) => {
            // SAFETY: a Symbol.
            let text = unsafe { rb_sys::rb_sym2str(symbol.as_raw()) };
            // SAFETY: its String.
            unsafe { Value::from_raw(text) }
        }
        None => value,
    };
    // SAFETY: the bytes are copied before Ruby runs again.
    RString::from_value(text).map(|text| String::from_utf8_lossy(unsafe { text.as_slice() }).into_owned())
}
