//! Two selections, to be compared: `a.…` and `b.…`, and what both have in common without a prefix.

use super::{Selection, link};
use crate::params::{BadParameter, Params};

/// The parameters that say one thing together, so that a side that says one of them says all.
const TOGETHER: [&[&str]; 3] = [&["since", "from", "to"], &["inside", "outside"], &["name", "name~"]];

/// The two sides of a diff.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// What is compared.
    pub(crate) a: Selection,
    /// With what.
    pub(crate) b: Selection,
}

impl Pair {
    /// Takes both selections; every parameter that is left belongs to them.
    pub(crate) fn take(params: Params) -> Result<Self, BadParameter> {
        let side = |prefix: &str, other: &str| {
            let mut own = params.side(prefix, other, same);
            let named = |bad: BadParameter| bad.of_side(prefix, |name| params.has(name));
            let selection = Selection::take(&mut own).map_err(named)?;
            own.finish().map_err(named)?;
            Ok(selection)
        };
        let pair = Self { a: side("a.", "b.")?, b: side("b.", "a.")? };
        if pair.a.profile_type != pair.b.profile_type {
            let allowed = format!("is compared with {:?}; both sides need one profile type", pair.b.profile_type);
            return Err(BadParameter::new("a.type", &pair.a.profile_type, allowed));
        }
        Ok(pair)
    }

    /// The parameters that parse to this pair.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        let (a, b) = (self.a.pairs(), self.b.pairs());
        // A time range that one side leaves out, as it is the usual one, must not become the other's.
        let common = |pair: &(String, String)| a.contains(pair) && b.contains(pair);
        let side = |prefix: &str, own: &[(String, String)]| -> Vec<(String, String)> {
            own.iter()
                .filter(|pair| !common(pair))
                .map(|(name, value)| (format!("{prefix}{name}"), value.clone()))
                .collect()
        };
        let mut pairs: Vec<_> = a.iter().filter(|pair| common(pair)).cloned().collect();
        pairs.extend(side("a.", &a));
        pairs.extend(side("b.", &b));
        pairs
    }

    /// A link to `path` with this pair.
    pub(crate) fn link(&self, path: &str) -> String {
        link(path, &self.pairs())
    }

    /// The same pair the other way round.
    pub(crate) fn swapped(&self) -> Self {
        Self { a: self.b.clone(), b: self.a.clone() }
    }
}

fn same(own: &str, common: &str) -> bool {
    own == common || TOGETHER.iter().any(|names| names.contains(&own) && names.contains(&common))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::TimeRange;

    fn parse(query: &str) -> Result<Pair, BadParameter> {
        Pair::take(Params::parse(query))
    }

    #[test]
    fn sides_share_what_has_no_prefix() {
        let pair = parse("service=s&name=a&a.dur>p95&b.dur<p50&from=1&to=2&b.since=5m").unwrap();
        assert_eq!(pair.a.sentence().split(", ").next(), Some("a of s"));
        assert_eq!(
            (pair.a.time_range, pair.b.time_range),
            (TimeRange::Between(1, 2), parse("since=5m").unwrap().a.time_range)
        );
        assert_eq!(parse(&super::super::query(&pair.pairs())).unwrap(), pair);
        assert_eq!(pair.swapped().swapped(), pair);
    }

    #[test]
    fn a_bad_side_is_named() {
        for (query, says) in [
            ("a.dur>x", "\"a.dur>\" = \"x\""),
            ("b.span=1", "\"b.span\" = \"1\""),
            ("trace=1", "\"trace\" = \"1\""),
            ("a.colour=red", "\"a.colour\" = \"red\": is not known here"),
            ("a.type=memory", "\"a.type\" = \"memory\": is compared with \"process_cpu\""),
        ] {
            let refused = parse(query).expect_err(query).to_string();
            assert!(refused.contains(says), "{query}: {refused}");
        }
    }
}
