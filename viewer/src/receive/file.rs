//! Profiles that lie in a file: what a profiler wrote to `file:///folder`, any pprof, a recording of Java Flight Recorder.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use super::jfr;
use super::labels::Labels;
use super::pprof;
use crate::budget::Budget;
use crate::http::allowed::Allowed;
use crate::http::refusal::Refusal;
use crate::store::Profile;

/// Endings of profiles, longest first.
const ENDINGS: [&str; 7] = [".pb.gz", ".jfr.gz", ".pprof", ".prof", ".jfr", ".pb", ".gz"];
/// Those of recordings, which hold several profiles.
const RECORDINGS: [&str; 2] = [".jfr.gz", ".jfr"];

/// However old a file is, it was asked for. A time at the end of all numbers would never be forgotten.
const EVER: (i64, i64) = (i64::MIN / 2, i64::MAX / 2);

/// So many bytes of a file are read at once, or more.
const LEAST_PIECE: usize = 4 << 10;

/// What sample and period types say about the name of a profile whose file does not say it.
const PROFILE_NAMES: [(&str, &[&str]); 6] = [
    ("process_cpu", &["cpu"]),
    ("wall", &["wall"]),
    ("memory", &["space", "alloc_space", "alloc_objects", "inuse_space", "inuse_objects"]),
    ("mutex", &["contentions", "delay", "lock_count", "lock_duration"]),
    ("goroutines", &["goroutine", "goroutines"]),
    ("exceptions", &["exception", "exceptions"]),
];

/// Whether a file in a folder looks like a profile.
pub(crate) fn is_profile(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    !name.starts_with('.') && ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Whether it may be anything that is packed.
pub(crate) fn may_be_anything(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ENDINGS.iter().find(|ending| name.ends_with(**ending)) == Some(&".gz")
}

/// The bytes of a file, as far as there is room for them: that is known before they are read, or of a pipe piece by piece.
pub(crate) fn open(path: &Path, budget: &Arc<Budget>) -> Result<Vec<u8>, String> {
    let mut allowed = Allowed::of_file(budget.hold());
    let mut take = |bytes| allowed.take(bytes, "the file").map_err(|refusal| refusal.message().to_owned());
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let said = file.metadata().map_or(0, |file| usize::try_from(file.len()).unwrap_or(usize::MAX));
    let (mut bytes, mut next) = (Vec::new(), said.saturating_add(1).max(LEAST_PIECE));
    loop {
        take(next)?;
        bytes.reserve_exact(next);
        let most = u64::try_from(next).unwrap_or(u64::MAX);
        let got = file.by_ref().take(most).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if got < next {
            return Ok(bytes);
        }
        next = bytes.len();
    }
}

/// Reads the bytes of a file. The error says what is wrong with them.
pub(crate) fn read(path: &Path, bytes: &[u8], budget: &Arc<Budget>) -> Result<Vec<Profile>, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if !RECORDINGS.iter().any(|ending| name.ends_with(ending)) && !jfr::is_recording(bytes) {
        return read_pprof(path, bytes, budget).map(|profile| vec![profile]);
    }
    let mut allowed = Allowed::of_file(budget.hold());
    let upload = jfr::Upload {
        recording: bytes,
        labels: &[],
        service: stem(&name),
        series: &[],
        start: None,
        sample_rate: None,
        mark: None,
        times: EVER,
    };
    let read = allowed.take(bytes.len(), "the file").and_then(|()| jfr::read(&upload, &mut allowed));
    match read {
        Ok(profiles) if profiles.is_empty() => Err("the recording has no event that is shown".into()),
        read => read.map_err(|refusal| refusal.message().to_owned()),
    }
}

/// The same of a pprof. Its service and what it is a profile of stand in the file's name, or else that name is the service and the types
/// of its values say the other.
fn read_pprof(path: &Path, bytes: &[u8], budget: &Arc<Budget>) -> Result<Profile, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let said = said(&name);
    let service = said.map_or_else(|| stem(&name), |(service, _)| service);
    let read = |profile_name: &str| {
        let labels = Labels::read([("__name__", profile_name), ("service_name", service)])?;
        let mut allowed = Allowed::of_file(budget.hold());
        allowed.take(bytes.len(), "the file")?;
        pprof::read(bytes, &labels, EVER, &mut allowed)
    };
    let message = |refusal: Refusal| refusal.message().to_owned();
    let profile = match said {
        Some((_, profile_name)) => read(profile_name).map_err(message)?,
        None => {
            let unnamed = read("profile").map_err(message)?;
            match profile_name(&unnamed) {
                "profile" => unnamed,
                profile_name => {
                    drop(unnamed);
                    read(profile_name).map_err(message)?
                }
            }
        }
    };
    if profile.parts.is_empty() { Err("the profile holds no sample".into()) } else { Ok(profile) }
}

/// Service and profile name in `service-name-start-process-number.pb.gz`, as the profilers write it.
fn said(name: &str) -> Option<(&str, &str)> {
    let mut parts = name.strip_suffix(".pb.gz")?.rsplitn(5, '-');
    let numbers = [parts.next()?, parts.next()?, parts.next()?];
    let (profile_name, service) = (parts.next()?, parts.next()?);
    let are_numbers =
        numbers.iter().all(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
    (are_numbers && !profile_name.is_empty() && !service.is_empty()).then_some((service, profile_name))
}

fn stem(name: &str) -> &str {
    ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).filter(|stem| !stem.is_empty()).unwrap_or(name)
}

fn profile_name(profile: &Profile) -> &'static str {
    // name:sample type:unit:period type:period unit
    let words: Vec<&str> =
        profile.parts.iter().flat_map(|part| part.profile_type.text.split(':').skip(1).step_by(2)).collect();
    let known = PROFILE_NAMES.iter().find(|(_, types)| words.iter().any(|word| types.contains(word)));
    known.map_or("profile", |(profile_name, _)| profile_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profilers_file_says_service_and_profile_name() {
        assert_eq!(said("my-shop-process_cpu-1700000000-77-0.pb.gz"), Some(("my-shop", "process_cpu")));
        for name in ["cpu.pb.gz", "a-b-c-d-e.pb.gz", "shop-process_cpu-1-2-3.pprof", "-process_cpu-1-2-3.pb.gz"] {
            assert_eq!(said(name), None, "{name}");
        }
        assert_eq!(["cpu.pb.gz", "heap.pprof", "profile", ".pb"].map(stem), ["cpu", "heap", "profile", ".pb"]);
    }

    #[test]
    fn what_is_being_written_is_no_profile_yet() {
        assert!(is_profile(Path::new("/a/shop-process_cpu-1-2-3.pb.gz")) && is_profile(Path::new("heap.pprof")));
        assert!(!is_profile(Path::new("/a/.shop-process_cpu-1-2-3.pb.gz.part")) && !is_profile(Path::new("notes.txt")));
        assert!(!is_profile(Path::new("/a/.hidden.pb.gz")));
    }

    #[test]
    fn what_is_packed_and_says_no_more_may_be_anything() {
        let anything = ["cpu.pb.gz", "a.jfr.gz", "heap.pprof", "cpu.gz", "access.log.1.gz"];
        assert_eq!(anything.map(|name| may_be_anything(Path::new(name))), [false, false, false, true, true]);
    }

    #[test]
    fn what_is_no_profile_is_refused_in_words() {
        assert!(read(Path::new("a.pb"), b"hello", &Budget::new(1 << 20, 1 << 20)).unwrap_err().contains("the profile"));
    }
}
