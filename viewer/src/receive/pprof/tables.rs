//! What the samples of a profile refer to: strings, functions, locations.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use ahash::HashMap;
use spanprof_core::wire::pprof::{Function as PprofFunction, Location};

use crate::http::allowed::Allowed;
use crate::http::refusal::{Refusal, invalid};
use crate::receive::strings::{LONGEST_TEXT, string, truncated};
use crate::store::Function;

/// Bytes that a node of a stack and an entry of a map take, with what finds them.
pub(super) const NODE: usize = 96;
pub(super) const ENTRY: usize = 96;

/// What samples refer to, checked once; all profiles of a request may share it.
pub(in crate::receive) struct Tables<'a> {
    pub(in crate::receive) strings: &'a [String],
    functions: Vec<Named>,
    /// Function and line, innermost first, of all locations one after the other.
    frames: Vec<(usize, i64)>,
    locations: Ids,
    /// Which of the frames are those of each location.
    ranges: Vec<Range<usize>>,
    /// The strings that rows were made of, cut, at their own places.
    texts: RefCell<Vec<Option<Arc<str>>>>,
}

/// The ids of entries, and at which place each entry is. Nearly all clients count from 1 on: then the id says the place.
#[derive(Default)]
struct Ids {
    /// The entries whose ids say their places: the first ones.
    counted: usize,
    others: HashMap<u64, usize>,
}

impl Ids {
    /// Takes the id of the next entry. Ids are not 0, and none comes twice.
    fn add(&mut self, id: u64, of: &str) -> Result<(), Refusal> {
        let place = self.counted + self.others.len();
        if self.others.is_empty() && id == place as u64 + 1 {
            self.counted += 1;
            return Ok(());
        }
        if id == 0 || self.place(id).is_some() {
            return Err(invalid(format!("the profile has {of} id {id} twice, or it is 0")));
        }
        self.others.insert(id, place);
        Ok(())
    }

    fn place(&self, id: u64) -> Option<usize> {
        let counted = usize::try_from(id).ok().and_then(|id| id.checked_sub(1)).filter(|place| *place < self.counted);
        counted.or_else(|| self.others.get(&id).copied())
    }
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
        // A profile without any string may refer to the empty one.
        let texts = vec![None; strings.len().max(1)];
        allowed.take(size_of_val(&*texts), "the profile")?;
        let mut tables = Self {
            strings,
            functions: Vec::with_capacity(functions.len()),
            frames: Vec::with_capacity(lines),
            locations: Ids::default(),
            ranges: Vec::with_capacity(locations.len()),
            texts: texts.into(),
        };
        let mut ids = Ids::default();
        for function in functions {
            let mut name = function.name;
            if string(strings, name, "a function's name")?.is_empty() {
                name = function.system_name;
                string(strings, name, "a function's system name")?;
            }
            string(strings, function.filename, "a function's file")?;
            ids.add(function.id, "function")?;
            tables.functions.push(Named { name, address: 0, file: function.filename });
        }
        for location in locations {
            let first = tables.frames.len();
            tables.add_frames(location, mappings, &ids)?;
            tables.locations.add(location.id, "location")?;
            tables.ranges.push(first..tables.frames.len());
        }
        Ok(tables)
    }

    fn add_frames(
        &mut self,
        location: &Location,
        mappings: &HashMap<u64, i64>,
        functions: &Ids,
    ) -> Result<(), Refusal> {
        for line in &location.line {
            let Some(function) = functions.place(line.function_id) else {
                return Err(invalid(format!(
                    "location {} refers to function {}, which the profile does not have",
                    location.id, line.function_id
                )));
            };
            self.frames.push((function, line.line.max(0)));
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

    /// Function and line of the frames of a location, innermost first.
    pub(super) fn frames(&self, location: u64) -> Result<&[(usize, i64)], Refusal> {
        match self.locations.place(location) {
            Some(place) => Ok(&self.frames[self.ranges[place].clone()]),
            None => Err(invalid(format!("a sample refers to location {location}, which the profile does not have"))),
        }
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
        let text = string(self.strings, index, "a name")?;
        let mut texts = self.texts.borrow_mut();
        let place = usize::try_from(index).ok().and_then(|index| texts.get_mut(index));
        if let Some(Some(known)) = &place {
            return Ok(Arc::clone(known));
        }
        let text = truncated(text, LONGEST_TEXT);
        allowed.take(text.len() + ENTRY, "the profile")?;
        let text: Arc<str> = text.into();
        if let Some(place) = place {
            *place = Some(Arc::clone(&text));
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_the_place_whether_it_is_counted_or_not() {
        for given in [&[1, 2, 3][..], &[1, 2, 9, 3, u64::MAX], &[7, 1, 2, 5], &[2, 1]] {
            let mut ids = Ids::default();
            for id in given {
                ids.add(*id, "function").unwrap();
            }
            for (place, id) in given.iter().enumerate() {
                assert_eq!(ids.place(*id), Some(place), "{id} of {given:?}");
                assert_eq!(ids.place(0), None);
                let refused = ids.add(*id, "function").unwrap_err();
                assert_eq!(refused.message(), format!("the profile has function id {id} twice, or it is 0"));
            }
            assert_eq!(ids.place(100), None);
            assert!(ids.add(0, "function").is_err());
        }
    }
}
