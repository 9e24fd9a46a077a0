//! The body of a request: read up to a bound, its format told from its headers, unpacked up to a bound.

use std::future::poll_fn;
use std::io::Read as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use flate2::read::MultiGzDecoder;
use tokio::time::Instant;

use super::allowed::{Allowed, no_room};
use super::refusal::{Reason, Refusal};
use crate::budget::{Budget, Held};
use crate::queries;

/// The largest body that is taken, as it was sent.
pub(crate) const MOST_SENT: usize = 16 << 20;
/// The largest body that is taken, unpacked.
pub(crate) const MOST_UNPACKED: usize = 64 << 20;
/// What is read and thrown away of a body that is too large or has no room, so that its sender reads the answer.
const MOST_DRAINED: usize = 512 << 20;
/// So many bytes at least come in so much time, or nothing does: a bad line brings twice as many.
const LEAST: usize = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(30);
/// The same where most bytes of all requests are held.
const LEAST_IN_HASTE: usize = 12 << 10;
const HASTE: Duration = Duration::from_secs(1);
/// And where somebody has waited for bytes for so long: one part in so many of those that the body holds. Who sends much at once and then
/// little keeps others out with what is there already, so much of it must go on fast: 192 KiB/s for 12 MiB. A line of
/// 20 kB/s still brings a megabyte.
const WANTED: Duration = Duration::from_millis(300);
const PART: usize = 32;
const HASTE_OF_PART: Duration = Duration::from_secs(2);
/// How often a body that does not arrive is looked after.
const GLANCE: Duration = Duration::from_millis(250);
/// What is unpacked at once, at first and at most.
const PIECE: usize = 64 << 10;
const MOST_PIECE: usize = 4 << 20;

/// How a message is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Binary.
    Protobuf,
    /// Text.
    Json,
}

impl Format {
    /// Tells the format from the header, where `protobuf` is what the protocol calls it.
    pub(crate) fn of(headers: &HeaderMap, protobuf: &[&'static str]) -> Result<Self, Refusal> {
        let header = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        let kind = header.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        match kind.as_str() {
            "application/json" => Ok(Self::Json),
            kind if protobuf.contains(&kind) => Ok(Self::Protobuf),
            other => Err(Refusal::new(
                Reason::ContentType,
                format!("content type {other:?} is not taken; send {} or application/json", protobuf.join(" or ")),
            )),
        }
    }
}

/// How long a sender has let us wait for its last so many bytes.
#[derive(Default)]
struct Waited {
    bytes: usize,
    time: Duration,
}

impl Waited {
    fn came(&mut self, bytes: usize, least: usize) {
        self.bytes += bytes;
        if self.bytes >= least {
            *self = Self::default();
        }
    }
}

/// Reads the body as it was sent; its bytes are taken from the budget before they are kept, and beyond so many from
/// another one.
pub(crate) async fn read(
    mut body: Body,
    budget: &Arc<Budget>,
    mut beyond: Option<(usize, &Arc<Budget>)>,
) -> Result<(Vec<u8>, Held), Refusal> {
    let mut bytes = Vec::new();
    let from = queries::asking_address();
    let mut held = budget.hold_arriving(from);
    // Its length may be said before.
    let mut seen = 0_usize;
    let said = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if let Some((_, other)) = beyond.take_if(|(most, _)| said > *most) {
        held = other.hold_arriving(from);
    }
    let (mut waited, mut in_haste, mut of_part) = (Waited::default(), Waited::default(), Waited::default());
    let mut wanted = Duration::ZERO;
    let mut refused = None;
    loop {
        let start = Instant::now();
        let next = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let frame = tokio::time::timeout(GLANCE, next).await;
        for waited in [&mut waited, &mut in_haste, &mut of_part] {
            waited.time += start.elapsed();
        }
        wanted = if held.is_wanted() { wanted + start.elapsed() } else { Duration::ZERO };
        if waited.time >= PATIENCE && (refused.is_some() || seen > MOST_SENT) {
            break;
        }
        if waited.time >= PATIENCE {
            let (least, seconds) = (LEAST >> 10, PATIENCE.as_secs());
            let sentence = format!("the body did not arrive: less than {least} KiB of it came within {seconds} s");
            return Err(Refusal::new(Reason::Incomplete, sentence));
        }
        if held.is_short() && in_haste.time >= HASTE {
            return Err(too_slow(LEAST_IN_HASTE, HASTE));
        }
        if wanted >= WANTED && of_part.time >= HASTE_OF_PART {
            return Err(too_slow(held.bytes() / PART, HASTE_OF_PART));
        }
        let Ok(frame) = frame else { continue };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| Refusal::new(Reason::Incomplete, format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        seen = seen.saturating_add(data.len());
        if let Some((_, other)) = beyond.take_if(|(most, _)| seen > *most) {
            let mut more = other.hold_arriving(from);
            match more.grow_later(bytes.len()).await {
                Ok(()) => held = more,
                Err(no) => refused = Some(no_room(no, "the body")),
            }
        }
        if body.is_end_stream() {
            held.arrived();
        }
        in_haste.came(data.len(), LEAST_IN_HASTE);
        of_part.came(data.len(), held.bytes() / PART);
        waited.came(data.len(), LEAST);
        if seen <= MOST_SENT && refused.is_none() {
            refused = held.grow_later(data.len()).await.err().map(|no| no_room(no, "the body"));
        }
        if seen <= MOST_SENT && refused.is_none() {
            // By itself it would take room for twice as many.
            if bytes.capacity() - bytes.len() < data.len() {
                bytes.reserve_exact(data.len().max(bytes.len() / 8));
            }
            bytes.extend_from_slice(&data);
        } else if !bytes.is_empty() {
            held.shrink(bytes.len());
            bytes = Vec::new();
        }
        if seen > MOST_DRAINED {
            break;
        }
    }
    if let Some(refusal) = refused {
        return Err(refusal);
    }
    if seen > MOST_SENT {
        return Err(too_large("the body", MOST_SENT));
    }
    held.arrived();
    Ok((bytes, held))
}

fn too_slow(least: usize, time: Duration) -> Refusal {
    let (least, seconds) = (least >> 10, time.as_secs());
    let sentence =
        format!("the body arrived too slowly while others waited: less than {least} KiB of it came within {seconds} s");
    Refusal::new(Reason::Incomplete, sentence)
}

/// Undoes Content-Encoding.
pub(crate) fn unpack(bytes: Vec<u8>, headers: &HeaderMap, allowed: &mut Allowed) -> Result<Vec<u8>, Refusal> {
    match encoding(headers).as_deref() {
        None | Some("" | "identity") => Ok(bytes),
        Some("gzip") => {
            let unpacked = gunzip(&bytes, MOST_UNPACKED, "the body", allowed)?;
            allowed.give_back(bytes.len());
            Ok(unpacked)
        }
        Some(other) => Err(not_unpacked(other)),
    }
}

/// The same of a question, which has at most `most` bytes.
pub(crate) fn unpack_short(
    bytes: Vec<u8>,
    headers: &HeaderMap,
    most: usize,
    held: &mut Held,
) -> Result<Vec<u8>, Refusal> {
    let take = |bytes| held.grow(bytes).map_err(|no| no_room(no, "the body, unpacked,"));
    let bytes = match encoding(headers).as_deref() {
        None | Some("" | "identity") => bytes,
        Some("gzip") => inflate(&bytes, most, "the body", take)?,
        Some(other) => return Err(not_unpacked(other)),
    };
    if bytes.len() > most { Err(too_large("the body", most)) } else { Ok(bytes) }
}

fn encoding(headers: &HeaderMap) -> Option<String> {
    headers.get(CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?").trim().to_ascii_lowercase())
}

fn not_unpacked(encoding: &str) -> Refusal {
    let sentence = format!("content encoding {encoding:?} is not taken; send gzip or identity");
    Refusal::new(Reason::ContentEncoding, sentence)
}

/// Unpacks at most `most` bytes; `what` is named in the refusal.
pub(crate) fn gunzip(bytes: &[u8], most: usize, what: &str, allowed: &mut Allowed) -> Result<Vec<u8>, Refusal> {
    inflate(bytes, most, what, |bytes| allowed.take(bytes, what))
}

/// Whether bytes begin as gzip does.
pub(crate) fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b])
}

/// How many bytes `bytes` are, unpacked, if they are gzip; its end says so, and may lie.
pub(crate) fn said_unpacked(bytes: &[u8]) -> usize {
    match bytes.last_chunk() {
        Some(end) if is_gzip(bytes) => usize::try_from(u32::from_le_bytes(*end)).unwrap_or(usize::MAX),
        _ => bytes.len(),
    }
}

fn inflate(
    bytes: &[u8],
    most: usize,
    what: &str,
    mut take: impl FnMut(usize) -> Result<(), Refusal>,
) -> Result<Vec<u8>, Refusal> {
    let mut unpacked = Vec::new();
    let mut decoder = MultiGzDecoder::new(bytes);
    loop {
        // One more than is allowed says that it is too many.
        let next = unpacked.len().clamp(PIECE, MOST_PIECE).min(most + 1 - unpacked.len());
        take(next)?;
        unpacked.reserve_exact(next);
        let got = decoder
            .by_ref()
            .take(u64::try_from(next).unwrap_or(u64::MAX))
            .read_to_end(&mut unpacked)
            .map_err(|error| Refusal::new(Reason::Invalid, format!("{what} is not gzip: {error}")))?;
        if unpacked.len() > most {
            return Err(too_large(&format!("{what}, unpacked,"), most));
        }
        if got < next {
            return Ok(unpacked);
        }
    }
}

/// Refuses what is larger than `most` bytes.
pub(crate) fn too_large(what: &str, most: usize) -> Refusal {
    let (most, unit) = if most < 1 << 20 { (most >> 10, "KiB") } else { (most >> 20, "MiB") };
    Refusal::new(Reason::TooLarge, format!("{what} is larger than {most} {unit}"))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io::Write as _;
    use std::task::{Context, Poll};

    use axum::body::{Bytes, HttpBody};
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// A body of which nothing comes.
    struct Never;

    impl HttpBody for Never {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_zip_bomb_is_refused_before_it_is_unpacked() {
        let refused = gunzip(&gzip(&vec![0; 3 << 20]), 1 << 20, "the body", &mut Allowed::plenty()).unwrap_err();
        assert_eq!((refused.status().as_u16(), refused.message()), (413, "the body, unpacked, is larger than 1 MiB"));
        assert_eq!(gunzip(&gzip(b"fits"), 4, "the body", &mut Allowed::plenty()).unwrap(), b"fits");
    }

    #[test]
    fn truncated_gzip_is_refused_in_words() {
        let mut bytes = gzip(b"some text that is long enough to be cut");
        bytes.truncate(20);
        let refused = gunzip(&bytes, 100, "the profile", &mut Allowed::plenty()).unwrap_err();
        assert!(refused.message().starts_with("the profile is not gzip"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_not_waited_for_and_sooner_where_others_wait() {
        let budget = Budget::new(1 << 20, 1 << 20);
        let never = || Body::new(Never);
        let start = tokio::time::Instant::now();
        let refused = read(never(), &budget, None).await.unwrap_err();
        assert_eq!(refused.status(), 408);
        assert!((PATIENCE..PATIENCE + GLANCE).contains(&start.elapsed()));
        let mut others = budget.hold();
        assert!(others.grow_now(600 << 10));
        let start = tokio::time::Instant::now();
        assert_eq!(read(never(), &budget, None).await.unwrap_err().status(), 408);
        assert!(start.elapsed() < 2 * HASTE);
    }

    /// A body of which so many bytes are left, and come in parts; the first one may be larger.
    struct Slow {
        left: usize,
        first: usize,
        part: usize,
        sleep: Pin<Box<tokio::time::Sleep>>,
        pause: Duration,
    }

    impl Slow {
        fn new(left: usize, part: usize, pause: Duration) -> Self {
            Self { left, first: part, part, sleep: Box::pin(tokio::time::sleep(pause)), pause }
        }

        fn body(left: usize, part: usize, pause: Duration) -> Body {
            Body::new(Self::new(left, part, pause))
        }
    }

    impl HttpBody for Slow {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
            let Self { left, first, part, sleep, pause } = &mut *self;
            if *left == 0 {
                return Poll::Ready(None);
            }
            std::task::ready!(sleep.as_mut().poll(context));
            sleep.as_mut().reset(tokio::time::Instant::now() + *pause);
            let next = std::mem::replace(first, *part);
            let bytes = Bytes::from(vec![0; next.min(*left)]);
            *left -= bytes.len();
            Poll::Ready(Some(Ok(hyper::body::Frame::data(bytes))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_line_brings_a_megabyte_also_where_others_wait_and_a_byte_a_second_does_not() {
        let budget = Budget::new(16 << 20, 16 << 20);
        let mut others = budget.hold();
        for is_short in [false, true] {
            assert!(!is_short || others.grow_now(9 << 20));
            let mut waits = budget.hold();
            // There is never room for it.
            let _wants =
                is_short.then(|| tokio::spawn(async move { while waits.grow_later(8 << 20).await.is_err() {} }));
            // 20 kB/s.
            let (bytes, _) = read(Slow::body(1 << 20, 1_400, Duration::from_millis(70)), &budget, None).await.unwrap();
            assert_eq!(bytes.len(), 1 << 20);
            let start = tokio::time::Instant::now();
            let refused = read(Slow::body(1 << 20, 1, Duration::from_secs(1)), &budget, None).await.unwrap_err();
            assert_eq!(refused.status(), 408);
            assert!(start.elapsed() <= if is_short { 2 * HASTE } else { PATIENCE + GLANCE });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_too_large_is_refused_for_that_over_a_bad_line_too() {
        let budget = Budget::new(64 << 20, 64 << 20);
        let slow = Slow::body(MOST_SENT + (4 << 20), 14_000, Duration::from_millis(700));
        assert_eq!(read(slow, &budget, None).await.unwrap_err().status(), 413);
        let stops = Slow { first: MOST_SENT + 1, ..Slow::new(2 * MOST_SENT, 1, Duration::from_secs(1)) };
        let start = tokio::time::Instant::now();
        assert_eq!(read(Body::new(stops), &budget, None).await.unwrap_err().status(), 413);
        assert!(start.elapsed() <= PATIENCE + Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn who_holds_much_and_trickles_makes_room_for_one_who_waits_for_it() {
        let budget = Budget::new(16 << 20, 16 << 20);
        // All but 4 MiB of it at once, and then 13 KiB/s.
        let body = Slow { first: 11 << 20, ..Slow::new(15 << 20, 1_300, Duration::from_millis(98)) };
        let reads = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { read(Body::new(body), &budget, None).await }
        });
        tokio::time::sleep(2 * PATIENCE).await;
        assert!(!reads.is_finished(), "where nobody waits for room it is left alone");
        assert_eq!(budget.hold().grow_later(4 << 20).await, Ok(()));
        let refused = reads.await.unwrap().unwrap_err();
        assert_eq!(refused.status(), 408);
        assert!(refused.message().ends_with(" KiB of it came within 2 s"), "{}", refused.message());
    }
}
