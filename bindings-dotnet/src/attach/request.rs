//! Asks CoreCLR, over its diagnostics socket, to load this library as a profiler of this very process.
//!
//! No environment variable is needed and nothing restarts. Once a process: an attached profiler stays.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::attach::callbacks::{CLASS, DllGetClassObject};
use crate::clr::info;
use crate::libraries::registry;

const MAGIC: &[u8; 14] = b"DOTNET_IPC_V1\0";
const HEADER_BYTES: usize = 20;
/// The runtime's commands for profilers, and of these the one that attaches.
const ATTACH: [u8; 4] = [0x03, 0x01, 0, 0];
const TIMEOUT: Duration = Duration::from_secs(5);

/// Held while one attaches.
static ATTACHING: Mutex<()> = Mutex::new(());

/// Attaches, unless that is done. Under a millisecond; the error says what is missing.
pub(crate) fn attach() -> Result<(), String> {
    let _one = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
    if info::attached().is_some() {
        return Ok(());
    }
    for variable in ["EnableDiagnostics", "EnableDiagnostics_Profiler", "EnableDiagnostics_IPC"] {
        for prefix in ["DOTNET_", "COMPlus_"] {
            let name = format!("{prefix}{variable}");
            if std::env::var(&name).is_ok_and(|value| value.trim() == "0") {
                return Err(format!("{name} is 0"));
            }
        }
    }
    let socket = socket()?;
    let library = own_path().ok_or("the path of libspanprof.so is not known")?;
    let mut stream = UnixStream::connect(&socket)
        .map_err(|error| format!("the diagnostics socket {} cannot be opened: {error}", socket.display()))?;
    let result = exchange(&mut stream, &request(&library)).map_err(|error| format!("attaching failed: {error}"))?;
    if result < 0 {
        return Err(format!("the runtime refused the profiler: 0x{result:08x}"));
    }
    info::attached().map(drop).ok_or_else(|| "the runtime did not load the profiler".to_owned())
}

/// Sends the request; the answer's HRESULT.
fn exchange(stream: &mut UnixStream, request: &[u8]) -> std::io::Result<i32> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(request)?;
    let mut answer = vec![0; HEADER_BYTES];
    stream.read_exact(&mut answer)?;
    let length = usize::from(u16::from_le_bytes([answer[14], answer[15]]));
    answer.resize(length.max(HEADER_BYTES), 0);
    stream.read_exact(&mut answer[HEADER_BYTES..])?;
    result(&answer).ok_or_else(|| std::io::Error::other("the answer cannot be read"))
}

/// Of an answer: 0xff and 0 = done, 0xff and 0xff = an error, with an HRESULT behind the header.
fn result(answer: &[u8]) -> Option<i32> {
    if !answer.starts_with(MAGIC) {
        return None;
    }
    let code =
        answer.get(HEADER_BYTES..HEADER_BYTES + 4).and_then(|code| Some(i32::from_le_bytes(code.try_into().ok()?)));
    match answer.get(16..18)? {
        [0xff, 0x00] => Some(code.unwrap_or(0)),
        [0xff, _] => code.map(|code| if code < 0 { code } else { i32::MIN }),
        _ => None,
    }
}

fn request(library: &str) -> Vec<u8> {
    let milliseconds = u32::try_from(TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    let path: Vec<u16> = library.encode_utf16().chain([0]).collect();
    let mut body = milliseconds.to_le_bytes().to_vec();
    body.extend(CLASS.to_bytes());
    body.extend(u32::try_from(path.len()).unwrap_or(u32::MAX).to_le_bytes());
    body.extend(path.iter().flat_map(|unit| unit.to_le_bytes()));
    body.extend(0_u32.to_le_bytes()); // no data for the profiler
    let mut request = MAGIC.to_vec();
    request.extend(u16::try_from(HEADER_BYTES + body.len()).unwrap_or(u16::MAX).to_le_bytes());
    request.extend(ATTACH);
    request.extend(body);
    request
}

/// The socket that CoreCLR opened for this process.
fn socket() -> Result<PathBuf, String> {
    let folder = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty()).unwrap_or_else(|| "/tmp".into());
    let folder = Path::new(&folder);
    let pid = std::process::id();
    let exact = std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| {
        let started = start_time(&stat)?.to_owned();
        Some(folder.join(format!("dotnet-diagnostic-{pid}-{started}-socket")))
    });
    if let Some(exact) = exact.filter(|exact| exact.exists()) {
        return Ok(exact);
    }
    // In a pid namespace that shows another's /proc the start time differs.
    let prefix = format!("dotnet-diagnostic-{pid}-");
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut ours = files.filter(|file| {
        file.file_name().to_str().is_some_and(|name| name.starts_with(&prefix) && name.ends_with("-socket"))
    });
    ours.next().map(|file| file.path()).ok_or_else(|| {
        format!("there is no diagnostics socket dotnet-diagnostic-{pid}-*-socket in {}", folder.display())
    })
}

/// Field 22 of /proc/self/stat; the second may hold spaces and parentheses.
fn start_time(stat: &str) -> Option<&str> {
    stat[stat.rfind(')')? + 1..].split_whitespace().nth(19)
}

/// Where this library was loaded from. ld.so is not asked: it may be busy with another thread's library.
fn own_path() -> Option<String> {
    let path = registry::path_of(DllGetClassObject as *const () as u64)?;
    std::fs::canonicalize(path).ok()?.to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_names_class_and_library() {
        let request = request("/a.so");
        assert_eq!(&request[..14], MAGIC);
        assert_eq!(usize::from(u16::from_le_bytes([request[14], request[15]])), request.len());
        assert_eq!(request[16..20], [3, 1, 0, 0]);
        assert_eq!(u32::from_le_bytes(request[20..24].try_into().unwrap()), 5_000);
        assert_eq!(request[24..40], CLASS.to_bytes());
        assert_eq!(request[40..44], [6, 0, 0, 0], "characters with the zero");
        assert_eq!(request[44..60], [b'/', 0, b'a', 0, b'.', 0, b's', 0, b'o', 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn answers_are_done_or_an_error() {
        let answer = |kind: [u8; 2], code: &[u8]| [&MAGIC[..], &[24, 0], &kind, &[0, 0], code].concat();
        assert_eq!(result(&answer([0xff, 0], &[0; 4])), Some(0));
        assert_eq!(result(&answer([0xff, 0xff], &0x8013_136a_u32.to_le_bytes())), Some(0x8013_136a_u32.cast_signed()));
        assert!(result(&answer([0xff, 0xff], &[0; 4])).unwrap() < 0);
        assert_eq!(result(&answer([0xff, 0xff], &[0; 3])), None, "cut off");
        assert_eq!(result(b"nonsense"), None);
    }

    #[test]
    fn the_start_time_is_found_behind_a_name_with_spaces() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(start_time(stat), Some("4242"));
        assert_eq!(start_time("7 (a"), None);
    }

    #[test]
    fn this_library_knows_its_file() {
        registry::refresh();
        assert!(own_path().unwrap().contains("spanprof"));
    }
}
