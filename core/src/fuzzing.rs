//! What fuzz/ calls: each takes any bytes and panics if a promise is broken. No public interface.

use std::collections::HashMap;
use std::io::Read as _;
use std::time::SystemTime;

use flate2::bufread::GzDecoder;
use prost::Message as _;

use crate::config::Config;
use crate::profile::halves;
use crate::profile::pprof::{Encoded, gzip};
use crate::profile_type::ProfileType;
use crate::stats::Tally;
use crate::upload;
use crate::wire::pprof::Profile;

/// Lines of NAME=VALUE are settings or an error that names a variable, whatever they are.
pub fn environment(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let variables: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    match Config::from_environment(|name| variables.get(name).map(|value| (*value).to_owned())) {
        Ok(mut config) => {
            config.application_name = "shop".to_owned();
            drop(config.check());
        }
        Err(error) => assert!(variables.keys().any(|name| error.message().starts_with(name)), "{error}"),
    }
}

/// Two bytes of a status, then a body that is a value of Retry-After as well: never accepted without a 2xx, and its
/// words fit on a line.
pub fn answer(data: &[u8]) {
    let Some((status, body)) = data.split_first_chunk::<2>() else { return };
    let (status, body) = (u16::from_le_bytes(*status) % 1_000, String::from_utf8_lossy(body));
    let words = upload::fuzzing::understood(status, &body, SystemTime::UNIX_EPOCH);
    assert!(words.chars().count() <= 300 && !words.contains(char::is_control), "{words:?}");
}

/// A profile in gzip is halved into all of its samples, in order, or not at all.
pub fn halves(data: &[u8]) {
    let Ok(profile) = Profile::decode(data) else { return };
    // Weights are time that was measured; sums of more than centuries are not.
    if profile.sample.iter().flat_map(|sample| &sample.value).any(|value| !(0..1 << 40).contains(value)) {
        return;
    }
    // Of two values, the second is what was measured.
    let weight = profile.sample.iter().filter_map(|sample| sample.value.last()).map(|value| value.unsigned_abs()).sum();
    let tally = Tally { samples: 77, weight };
    let profile_type = ProfileType::process_cpu(1);
    let Some(body) = gzip(data) else { return };
    let whole = Encoded { profile_type, start_unix_nanos: 1, body, tally };
    let Some(halves) = halves::split(&whole) else {
        assert!(profile.sample.len() < 2);
        return;
    };
    let mut values = Vec::new();
    let mut sum = Tally::default();
    for half in &halves {
        sum += half.tally;
        let mut bytes = Vec::new();
        assert!(GzDecoder::new(half.body.as_slice()).read_to_end(&mut bytes).is_ok());
        let half = Profile::decode(bytes.as_slice()).unwrap_or_default();
        values.extend(half.sample.into_iter().map(|sample| sample.value));
    }
    assert_eq!(sum, tally);
    assert!(values.into_iter().eq(profile.sample.into_iter().map(|sample| sample.value)));
}
