//! What a profile type's five parts say of it: `name:sample type:unit:period type:period unit`, as Pyroscope writes them.

/// The profile type that is meant where none is said.
pub(crate) const CPU: &str = "process_cpu";
/// The name of the profile types that hold all time, waits too, whose samples may say their state.
pub(crate) const WALL: &str = "wall";

/// The names that profilers have for profiles. That none of such a name came is no mistake of whoever asks for it.
const NAMES: [&str; 9] = [CPU, WALL, "memory", "lock", "exception", "mutex", "block", "goroutines", "off_cpu"];

/// The unit of times as our profilers send them.
pub(crate) const NANOSECONDS: &str = "nanoseconds";

/// Units of what is measured, first what is meant rather; others count how often.
const MEASURES: [&str; 5] = [NANOSECONDS, "microseconds", "milliseconds", "seconds", "bytes"];

/// What people call it: `cpu`, `alloc_space`, `block delay`.
pub(crate) fn word(text: &str) -> String {
    let (name, sample_type, _) = parts(text);
    let name = if name == CPU { "cpu" } else { name };
    match sample_type {
        "" => name.into(),
        // What several profiles count or measure.
        "samples" | "sample" | "contentions" | "delay" | "count" | "objects" | "space" => {
            format!("{name} {sample_type}")
        }
        word => word.into(),
    }
}

/// Whether its name is one that profilers have for profiles.
pub(crate) fn is_named(text: &str) -> bool {
    NAMES.contains(&parts(text).0)
}

/// The unit of its values.
pub(crate) fn unit(text: &str) -> &str {
    parts(text).2
}

/// Name, sample type and unit; "" where they are not said.
pub(crate) fn parts(text: &str) -> (&str, &str, &str) {
    let mut parts = text.split(':');
    let mut next = || parts.next().unwrap_or("");
    (next(), next(), next())
}

/// Whether it is what there was at an instant, such as goroutines and the live heap. Over time such values are averaged, where
/// those of what happened are added.
pub(crate) fn is_snapshot(text: &str) -> bool {
    let (name, sample_type, _) = parts(text);
    match sample_type {
        "goroutine" | "goroutines" | "threadcreate" | "live" => true,
        // Of Node's heap; what was allocated in a time says alloc_.
        "space" | "objects" => name == "memory",
        other => other.starts_with("inuse_"),
    }
}

/// Of sample types that one name may mean, the least is meant: the one of that name, then one that measures.
pub(crate) fn order<'a>(name: &str, sample_type: &'a str, unit: &str) -> (bool, usize, &'a str) {
    let is_own = sample_type == if name == CPU { "cpu" } else { name };
    (!is_own, MEASURES.iter().position(|known| *known == unit).unwrap_or(MEASURES.len()), sample_type)
}

/// Whether values of this unit measure something, and do not count.
pub(crate) fn is_measure(unit: &str) -> bool {
    MEASURES.contains(&unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_tell_profile_types_apart() {
        let of_go = [
            "process_cpu:samples:count:cpu:nanoseconds",
            "process_cpu:cpu:nanoseconds:cpu:nanoseconds",
            "memory:alloc_objects:count:space:bytes",
            "memory:alloc_space:bytes:space:bytes",
            "memory:inuse_objects:count:space:bytes",
            "memory:inuse_space:bytes:space:bytes",
            "goroutines:goroutine:count:goroutine:count",
            "mutex:contentions:count:contentions:count",
            "mutex:delay:nanoseconds:contentions:count",
            "block:contentions:count:contentions:count",
            "block:delay:nanoseconds:contentions:count",
        ];
        assert_eq!(
            of_go.map(word),
            [
                "cpu samples",
                "cpu",
                "alloc_objects",
                "alloc_space",
                "inuse_objects",
                "inuse_space",
                "goroutine",
                "mutex contentions",
                "mutex delay",
                "block contentions",
                "block delay"
            ]
        );
        let snapshots = of_go.into_iter().filter(|text| is_snapshot(text)).map(word);
        assert_eq!(snapshots.collect::<Vec<_>>(), ["inuse_objects", "inuse_space", "goroutine"]);
        assert!(is_snapshot("memory:space:bytes:space:bytes") && !is_snapshot("disk:space:bytes::"));
    }

    #[test]
    fn a_name_means_what_it_says_and_else_what_measures() {
        let meant = |name: &str, types: &[(&'static str, &str)]| {
            types.iter().min_by_key(|(word, unit)| order(name, word, unit)).unwrap().0
        };
        assert_eq!(meant(CPU, &[("samples", "count"), ("alloc_size", "bytes"), ("cpu", "nanoseconds")]), "cpu");
        assert_eq!(order(CPU, "cpu", "nanoseconds").min(order(CPU, "cpu", "bytes")), order(CPU, "cpu", "nanoseconds"));
        assert_eq!(meant("memory", &[("inuse_objects", "count"), ("inuse_space", "bytes")]), "inuse_space");
        assert_eq!(meant("goroutines", &[("goroutine", "count")]), "goroutine");
    }
}
