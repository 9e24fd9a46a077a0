//! `spanprof view`: profiles that lie in files, without a server that received them.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use super::cli::View;
use super::terminal::{self, OF_SAMPLES};
use crate::format::counted;
use crate::http::refusal::Refusals;
use crate::memory::Shares;
use crate::queries::Queries;
use crate::receive;
use crate::receive::profilers::Profilers;
use crate::selection::{Selection, StackDisplay, TimeRange};
use crate::server;
use crate::server::flags::{Cli, Optional};
use crate::show::Shown;
use crate::store::Store;

/// Folders within folders are looked into to this depth, as links may lead in circles.
const DEEPEST: usize = 16;
/// Functions that `--once` prints of each service.
const FUNCTIONS: usize = 30;

/// What was read.
struct Loaded {
    profiles: i64,
    services: BTreeSet<String>,
}

/// Reads the files, then serves the pages, or prints what they hold. The error is one sentence.
pub(crate) fn run(view: &View) -> Result<(), String> {
    let shares = Shares::of(view.memory);
    let store = Store::open(None, &shares.limits())?;
    let loaded = load(&store, &view.paths, &shares)?;
    let names: Vec<&str> = loaded.services.iter().map(String::as_str).collect();
    terminal::print(&format!("{} of {}\n", counted(loaded.profiles, "profile"), terminal::plain(&names.join(", "))))?;
    let forgotten = store.forgotten().profiles_by_size;
    if forgotten > 0 {
        complain(&format!("{forgotten} of them, the oldest, have no room; give more by --memory SIZE"));
    }
    if view.once {
        return print(store, &loaded.services, view);
    }
    let cli = Cli {
        listen: view.listen,
        listen_otlp: Optional(None),
        listen_grpc: Optional(None),
        basic_auth: None,
        allow_host: Vec::new(),
        data: None,
        // Whatever was opened stays.
        retain: std::time::Duration::MAX,
        memory: view.memory,
    };
    // However old it is.
    TimeRange::Stored.make_usual();
    server::run_with(&cli, store)
}

fn load(store: &Store, paths: &[PathBuf], shares: &Shares) -> Result<Loaded, String> {
    let mut loaded = Loaded { profiles: 0, services: BTreeSet::new() };
    let mut take = |path: &Path| -> Result<(), String> {
        let failed = |reason: String| format!("cannot open {}: {reason}", path.display());
        let budget = shares.of_file(store.bytes());
        let bytes = receive::file::open(path, &budget).map_err(failed)?;
        let profiles = receive::file::read(path, &bytes, &budget).map_err(failed)?;
        drop(bytes);
        store.insert_profiles(&profiles).map_err(|error| failed(error.to_string()))?;
        loaded.profiles += i64::try_from(profiles.len()).unwrap_or(i64::MAX);
        loaded.services.extend(profiles.iter().map(|profile| profile.service.to_string()));
        Ok(())
    };
    for path in paths {
        if !path.is_dir() {
            take(path)?;
            continue;
        }
        let mut files = Vec::new();
        profiles_in(path, DEEPEST, &mut files).map_err(|error| format!("cannot open {}: {error}", path.display()))?;
        files.sort();
        if files.is_empty() {
            return Err(format!(
                "{} holds no profile: none of its files ends with .pb.gz, .pb, .pprof, .prof, .jfr or .gz",
                path.display()
            ));
        }
        let mut left_out: Vec<String> = Vec::new();
        for file in files {
            match take(&file) {
                Ok(()) => {}
                // Folders hold packed logs too.
                Err(sentence) if receive::file::may_be_anything(&file) => left_out.push(sentence),
                // One bad file among many is no reason to show none.
                Err(sentence) => complain(&sentence),
            }
        }
        if let Some(first) = left_out.first() {
            let files = counted(i64::try_from(left_out.len()).unwrap_or(i64::MAX), "file");
            complain(&format!("left out {files} named .gz that could not be read as a profile; the first: {first}"));
        }
    }
    if loaded.profiles == 0 { Err("none of the files could be read".into()) } else { Ok(loaded) }
}

fn profiles_in(folder: &Path, deepest: usize, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && deepest > 0 {
            profiles_in(&path, deepest - 1, found)?;
        } else if path.is_file() && receive::file::is_profile(&path) {
            found.push(path);
        }
    }
    Ok(())
}

/// The hottest functions of each service and profile type, or of those that are asked for.
fn print(store: Arc<Store>, services: &BTreeSet<String>, view: &View) -> Result<(), String> {
    if let Some(none) = view.service.as_ref().filter(|asked| !services.contains(*asked)) {
        let names: Vec<&str> = services.iter().map(String::as_str).collect();
        return Err(format!("there is no service {:?}; there are profiles of: {}", none, names.join(", ")));
    }
    let shown = Shown {
        store,
        refusals: Arc::new(Refusals::default()),
        profilers: Arc::new(Profilers::default()),
        retain: std::time::Duration::MAX,
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        otlp: None,
        queries: Queries::new(1),
    };
    for service in services.iter().filter(|service| view.service.as_ref().is_none_or(|asked| asked == *service)) {
        let types = match &view.profile_type {
            Some(asked) => vec![asked.clone()],
            None => {
                let seen = shown.store.profile_types(Some(service), TimeRange::Stored);
                seen.map_err(|error| error.to_string())?.types.into_iter().map(|seen| seen.asked).collect()
            }
        };
        for profile_type in types {
            let of_service = Selection::everything().time_range(TimeRange::Stored).service(service);
            let selection = Selection { name: view.span.clone(), ..of_service.profile_type(&profile_type) };
            let top = shown.top(&selection, StackDisplay::default()).map_err(|error| error.to_string())?;
            let why =
                top.absence.as_ref().map_or_else(String::new, |absence| terminal::plain(&absence.sentence) + "\n");
            let top = serde_json::to_value(&top).map_err(|error| error.to_string())?;
            let text = terminal::top(&top, FUNCTIONS, OF_SAMPLES);
            terminal::print(&format!("\n{text}{why}\n"))?;
        }
    }
    Ok(())
}

fn complain(sentence: &str) {
    // Nothing is left to do if standard error is closed.
    let _ = writeln!(io::stderr(), "spanprof: {}", terminal::plain(sentence));
}
