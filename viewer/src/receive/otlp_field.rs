//! What a field of a message is, as protobuf's JSON has it.

/// The fields of a message that are read.
#[derive(Debug)]
pub(super) struct Fields(pub(super) &'static [Field]);

/// A field.
#[derive(Debug)]
pub(super) struct Field {
    /// As JSON has it; its own name has an underscore and a small letter for each capital letter.
    pub(super) name: &'static str,
    pub(super) number: u32,
    /// Whether there may be many.
    pub(super) is_list: bool,
    pub(super) kind: Kind,
}

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Int32,
    Int64,
    Uint64,
    Fixed32,
    Fixed64,
    Double,
    Bool,
    /// By name, from 0 on.
    Enum(&'static [&'static str]),
    Text,
    Base64,
    Hex,
    Message(&'static Fields),
}

/// A field that there is one of.
pub(super) const fn one(name: &'static str, number: u32, kind: Kind) -> Field {
    Field { name, number, is_list: false, kind }
}

/// A field that there may be many of.
pub(super) const fn many(name: &'static str, number: u32, kind: Kind) -> Field {
    Field { name, number, is_list: true, kind }
}

impl Fields {
    /// The field that JSON calls so, by either of its names.
    pub(super) fn find(&self, name: &str) -> Option<&'static Field> {
        self.0.iter().find(|field| field.name == name || is_own_name(field.name, name))
    }
}

/// Whether `own` is a field's own name, such as `trace_id` of `traceId`.
fn is_own_name(name: &str, own: &str) -> bool {
    let mut own = own.bytes();
    let same = name.bytes().all(|byte| {
        let is_capital = byte.is_ascii_uppercase();
        (!is_capital || own.next() == Some(b'_')) && own.next() == Some(byte.to_ascii_lowercase())
    });
    same && own.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_by_both_of_its_forms() {
        assert!(is_own_name("traceId", "trace_id") && is_own_name("key", "key"));
        for other in ["traceid", "trace_id_", "trace", "trace__id", ""] {
            assert!(!is_own_name("traceId", other), "{other}");
        }
    }
}
