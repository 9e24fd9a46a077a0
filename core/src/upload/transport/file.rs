//! `server_address = file:///folder`: one file a profile, which `go tool pprof` reads.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, process};

use super::super::outcome::{Blame, Outcome, Verdict};
use crate::profile::pprof::Encoded;

/// Numbers the files of this process, across profilers that were stopped and started again.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Writes a profile. A file that cannot be written is not tried again: disks do not come back as servers do.
pub(super) fn write(folder: &Path, service: &str, encoded: &Encoded) -> Outcome {
    match write_new(folder, service, encoded) {
        Ok(()) => Outcome::accepted(),
        Err(error) => Outcome {
            verdict: Verdict::Refused,
            reason: format!("cannot write to {}: {error}", folder.display()),
            blame: Blame::Address,
            status: None,
            unanswered: false,
        },
    }
}

/// Written under another name first, so that who watches the folder never sees half a profile.
fn write_new(folder: &Path, service: &str, encoded: &Encoded) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let (service, kind) = (file_name(service), encoded.profile_type.name);
    let name = format!("{service}-{kind}-{}-{}-{number}.pb.gz", encoded.start_unix_nanos, process::id());
    let unfinished = folder.join(format!(".{name}.part"));
    let written = fs::write(&unfinished, &encoded.body).and_then(|()| fs::rename(&unfinished, folder.join(&name)));
    if written.is_err() {
        // What is left of it has no reader; that it cannot be removed either changes nothing.
        drop(fs::remove_file(&unfinished));
    }
    written
}

/// A service's name without what means something in paths, and short enough for a file's name.
fn file_name(service: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
    service.chars().take(100).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile_type::ProfileType;
    use crate::stats::Tally;

    fn profile() -> Encoded {
        Encoded {
            profile_type: ProfileType::process_cpu(1),
            start_unix_nanos: 1_700_000_000,
            body: b"profile".to_vec(),
            tally: Tally::default(),
        }
    }

    #[test]
    fn each_profile_is_a_file_in_a_folder_that_is_made() {
        let temporary = tempfile::tempdir().expect("temporary folder");
        let folder = temporary.path().join("a/b");
        assert_eq!(write(&folder, "../my shop", &profile()), Outcome::accepted());
        assert_eq!(write(&folder, "../my shop", &profile()), Outcome::accepted());
        let mut names: Vec<_> = fs::read_dir(&folder)
            .expect("folder")
            .map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort_unstable();
        assert_eq!(names.len(), 2);
        for name in names {
            let start = format!(".._my_shop-process_cpu-1700000000-{}-", process::id());
            assert!(name.starts_with(&start) && name.ends_with(".pb.gz"), "{name}");
            assert_eq!(fs::read(folder.join(name)).expect("file"), b"profile");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_reported() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let outcome = write(file.path(), "shop", &profile());
        assert_eq!((outcome.verdict, outcome.blame), (Verdict::Refused, Blame::Address));
        assert!(outcome.reason.contains(&file.path().display().to_string()), "{}", outcome.reason);
    }
}
