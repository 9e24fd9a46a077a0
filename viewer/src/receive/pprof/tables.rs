//! What the samples of a profile refer to: strings, functions, locations.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use ahash::{HashMap, HashMapExt as _};
use spanprof_core::wire::pprof::{Function as PprofFunction, Location};

use crate::http::allowed::Allowed;
use crate::http::refusal::{Refusal, invalid};
use crate::receive::strings::{LONGEST_TEXT, cut, string};
use crate::store::Function;

/// Bytes that a node of a stack and an entry of a map take, with what finds them.
pub(super) const NODE: usize = 96;
pub(super) const ENTRY: usize = 96;

/// What samples refer to, checked once; all profiles of a request may share it.
pub(in crate::receive) struct Tables<'a> {
    pub(in crate::receive) strings: &'a [String],
    functions: Vec<Named>,
    /// Function and line, innermost first, of all locations one after the other.
    pub(super) frames: Vec<(usize, i64)>,
    pub(super) locations: HashMap<u64, Range<usize>>,
    /// The strings that rows were made of, cut.
    texts: RefCell<HashMap<i64, Arc<str>>>,
}

/// A function: its name, or the address that it is called by, and its file.
struct Named {
    name: i64,
    address: u64,
    file: i64,
}

impl<'a> Tables<'a> {
    /// `mappings` are the files of mappings.
    pub(in crate::receive) fn new(
        strings: &'a [String],
        mappings: &HashMap<u64, i64>,
        functions: &[PprofFunction],
        locations: &[Location],
        allowed: &mut Allowed,
    ) -> Result<Self, Refusal> {
        if strings.first().is_some_and(|first| !first.is_empty()) {
            return Err(invalid("the profile's first string is not empty"));
        }
        let lines: usize = locations.iter().map(|location| location.line.len().max(1)).sum();
        let entries = functions.len().saturating_add(locations.len()).saturating_mul(2).saturating_add(lines);
        allowed.take(entries.saturating_mul(32), "the profile")?;
        let mut tables = Self {
            strings,
            functions: Vec::with_capacity(functions.len()),
            frames: Vec::with_capacity(lines),
            locations: HashMap::with_capacity(locations.len()),
            texts: RefCell::default(),
        };
        let mut numbers = HashMap::with_capacity(functions.len());
        for function in functions {
            let mut name = function.name;
            if string(strings, name, "a function's name")?.is_empty() {
                name = function.system_name;
                string(strings, name, "a function's system name")?;
            }
            string(strings, function.filename, "a function's file")?;
            if function.id == 0 || numbers.insert(function.id, tables.functions.len()).is_some() {
                return Err(invalid(format!("the profile has function id {} twice, or it is 0", function.id)));
            }
            tables.functions.push(Named { name, address: 0, file: function.filename });
        }
        for location in locations {
            let first = tables.frames.len();
            tables.add_frames(location, mappings, &numbers)?;
            let frames = first..tables.frames.len();
            if location.id == 0 || tables.locations.insert(location.id, frames).is_some() {
                return Err(invalid(format!("the profile has location id {} twice, or it is 0", location.id)));
            }
        }
        Ok(tables)
    }

    fn add_frames(
        &mut self,
        location: &Location,
        mappings: &HashMap<u64, i64>,
        numbers: &HashMap<u64, usize>,
    ) -> Result<(), Refusal> {
        for line in &location.line {
            let Some(function) = numbers.get(&line.function_id) else {
                return Err(invalid(format!(
                    "location {} refers to function {}, which the profile does not have",
                    location.id, line.function_id
                )));
            };
            self.frames.push((*function, line.line.max(0)));
        }
        if location.line.is_empty() {
            if location.address == 0 {
                return Err(invalid(format!("location {} has neither a line nor an address", location.id)));
            }
            let file = mappings.get(&location.mapping_id).copied().unwrap_or(0);
            string(self.strings, file, "a mapping's file")?;
            self.frames.push((self.functions.len(), 0));
            self.functions.push(Named { name: 0, address: location.address, file });
        }
        Ok(())
    }

    /// A function as it is stored.
    pub(super) fn function(&self, index: usize, allowed: &mut Allowed) -> Result<Function, Refusal> {
        let Named { name, address, file } = self.functions[index];
        allowed.take(NODE, "the profile")?;
        let name = match (address, self.text(name, allowed)?) {
            (0, name) if name.is_empty() => "(no name)".into(),
            (0, name) => name,
            (address, _) => format!("{address:#x}").into(),
        };
        Ok(Function { name, file: self.text(file, allowed)? })
    }

    /// A string that was checked to be there, kept once.
    fn text(&self, index: i64, allowed: &mut Allowed) -> Result<Arc<str>, Refusal> {
        let mut texts = self.texts.borrow_mut();
        if let Some(text) = texts.get(&index) {
            return Ok(Arc::clone(text));
        }
        let text = cut(string(self.strings, index, "a name")?, LONGEST_TEXT);
        allowed.take(text.len() + ENTRY, "the profile")?;
        let text: Arc<str> = text.into();
        texts.insert(index, Arc::clone(&text));
        Ok(text)
    }
}
