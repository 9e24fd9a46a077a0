//! The labels of a series, which its profiles' samples add theirs to.

use std::collections::BTreeMap;

use spanprof_core::wire::push::LabelPair;

use crate::http::refusal::{Refusal, invalid};
use crate::sender::Sender;

/// Labels of a series, and the longest of their names and values, as in Pyroscope.
pub(super) const MOST_LABELS: usize = 30;
const LONGEST_NAME: usize = 1_024;
pub(super) const LONGEST_VALUE: usize = 2_048;

/// The label that says which profiler sent it.
pub(super) const SPY: &str = "pyroscope_spy";
/// The attribute of a resource that says of which language its SDK is.
pub(super) const LANGUAGE: &str = "telemetry.sdk.language";

/// The labels of a pushed series.
#[derive(Debug)]
pub(super) struct Labels {
    /// All of them, service_name added where it is missing.
    pub(super) all: BTreeMap<String, String>,
    /// Label `__name__`.
    pub(super) profile_name: String,
    /// Label service_name.
    pub(super) service: String,
}

impl Labels {
    /// Checks the labels; `__name__` must be there. Of two with one name the last counts.
    pub(super) fn read<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Refusal> {
        let mut all = BTreeMap::new();
        for (name, value) in pairs {
            all.insert(name, value);
            if all.len() > MOST_LABELS {
                break;
            }
        }
        check(&all)?;
        // What Pyroscope calls it; the pages show it under this name.
        let service = *all.entry("service_name").or_insert("unknown_service");
        let profile_name = all.get("__name__").filter(|name| !name.is_empty()).copied();
        let profile_name = profile_name
            .ok_or_else(|| invalid("the label __name__ is missing; it says what was measured, such as process_cpu"))?;
        let (profile_name, service) = (profile_name.into(), service.into());
        let all = all.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Ok(Self { all, profile_name, service })
    }

    /// What the profiles are sent with, as far as that is said.
    pub(super) fn sender(&self) -> Option<Sender> {
        let spy = self.all.get(SPY).and_then(|spy| Sender::of_spy(spy));
        spy.or_else(|| self.all.get(LANGUAGE).and_then(|language| Sender::of_language(language)))
    }

    /// The same of what was pushed.
    pub(super) fn of_pairs(pairs: &[LabelPair]) -> Result<Self, Refusal> {
        Self::read(pairs.iter().map(|pair| (pair.name.as_str(), pair.value.as_str())))
    }
}

/// Refuses too many labels, and names and values that are too long.
pub(super) fn check(labels: &BTreeMap<&str, &str>) -> Result<(), Refusal> {
    if labels.len() > MOST_LABELS {
        return Err(invalid(format!("there are more than {MOST_LABELS} labels, and at most {MOST_LABELS} are taken")));
    }
    for (name, value) in labels {
        if name.is_empty() || name.len() > LONGEST_NAME || value.len() > LONGEST_VALUE {
            let name: String = name.chars().take(60).collect();
            return Err(invalid(format!(
                "label {name:?}: names have 1 to {LONGEST_NAME} bytes, values at most {LONGEST_VALUE}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Labels, Refusal> {
        Labels::read(pairs.iter().copied())
    }

    #[test]
    fn a_series_without_a_service_is_taken_under_pyroscopes_name_for_it() {
        assert_eq!(read(&[("__name__", "process_cpu")]).unwrap().service, "unknown_service");
    }

    #[test]
    fn bounds_are_said() {
        let name = "n".repeat(LONGEST_NAME + 1);
        assert!(read(&[("__name__", "x"), (&name, "")]).unwrap_err().message().contains("1 to 1024 bytes"));
        let value = "v".repeat(LONGEST_VALUE + 1);
        assert!(read(&[("__name__", "x"), ("a", &value)]).unwrap_err().message().contains("at most 2048"));
        let names: Vec<String> = (0..=MOST_LABELS).map(|n| n.to_string()).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert!(read(&many).unwrap_err().message().contains("more than 30 labels"));
        assert!(read(&[("__name__", "")]).unwrap_err().message().contains("__name__ is missing"));
    }
}
