//! Recordings that nobody's program writes: each says that it holds much, or leads in a circle. Tests alone.

use std::time::Duration;

use super::{Upload, read};
use crate::budget::Budget;
use crate::http::allowed::Allowed;
use crate::work::{self, Gone, Haste};

/// What a large request may take at `--memory 128m`.
const MEMORY: usize = 12 << 20;

const TEXT: u8 = 20;
const SYMBOL: u8 = 21;
const CLASS: u8 = 22;
const METHOD: u8 = 23;
const STACK: u8 = 24;
const FRAME: u8 = 25;
const STATE: u8 = 26;
const SAMPLE: u8 = 27;
const LONG: u8 = 28;
const ODD: u8 = 29;

fn number(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..8 {
        if value < 0x80 {
            bytes.push(u8::try_from(value).unwrap());
            return bytes;
        }
        bytes.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).unwrap());
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [vec![3], number(text.len() as u64), text.as_bytes().to_vec()].concat()
}

/// A type with its fields: name, type, whether it is a constant's number, whether there are many.
type Described<'a> = (u8, &'a str, &'a [(&'a str, u8, bool, bool)]);

const TYPES: &[Described<'_>] = &[
    (TEXT, "java.lang.String", &[]),
    (LONG, "long", &[]),
    (SYMBOL, "jdk.types.Symbol", &[("string", TEXT, false, false)]),
    (CLASS, "java.lang.Class", &[("name", SYMBOL, true, false)]),
    (METHOD, "jdk.types.Method", &[("type", CLASS, true, false), ("name", SYMBOL, true, false)]),
    (STACK, "jdk.types.StackTrace", &[("frames", FRAME, false, true)]),
    (FRAME, "jdk.types.StackFrame", &[("method", METHOD, true, false)]),
    (STATE, "jdk.types.ThreadState", &[("name", TEXT, false, false)]),
    (SAMPLE, "jdk.ExecutionSample", &[("stackTrace", STACK, true, false), ("state", STATE, true, false)]),
];

/// The event that describes types, the last of which is `odd`.
fn metadata(odd: &[(&str, u8, bool, bool)]) -> Vec<u8> {
    let words = ["root", "metadata", "class", "field", "id", "name", "constantPool", "dimension", "true", "1"];
    let mut strings: Vec<String> = words.map(String::from).to_vec();
    let mut word = |word: &str| {
        let known = strings.iter().position(|known| known == word);
        let place = known.unwrap_or_else(|| {
            strings.push(word.into());
            strings.len() - 1
        });
        number(place as u64)
    };
    let types: Vec<Described<'_>> = TYPES.iter().copied().chain([(ODD, "odd", odd)]).collect();
    let mut elements =
        [word("root"), number(0), number(1), word("metadata"), number(0), number(types.len() as u64)].concat();
    for (id, name, fields) in types {
        elements
            .extend([word("class"), number(2), word("id"), word(&id.to_string()), word("name"), word(name)].concat());
        elements.extend(number(fields.len() as u64));
        for (name, of, is_constant, is_array) in fields {
            let attributes = 2 + u64::from(*is_constant) + u64::from(*is_array);
            elements.extend([word("field"), number(attributes), word("name"), word(name)].concat());
            elements.extend([word("class"), word(&of.to_string())].concat());
            if *is_constant {
                elements.extend([word("constantPool"), word("true")].concat());
            }
            if *is_array {
                elements.extend([word("dimension"), word("1")].concat());
            }
            elements.extend(number(0));
        }
    }
    let table: Vec<u8> = strings.iter().flat_map(|string| text(string)).collect();
    event(0, &[vec![0, 0, 0], number(strings.len() as u64), table, elements].concat())
}

/// Pools of constants: type, how many there are as it says, and the constants with their numbers.
fn pools(delta: u64, pools: &[(u8, u64, Vec<u8>)]) -> Vec<u8> {
    let pools_: Vec<u8> = pools
        .iter()
        .flat_map(|(of, count, constants)| [number((*of).into()), number(*count), constants.clone()].concat())
        .collect();
    event(1, &[vec![0, 0], number(delta), vec![0], number(pools.len() as u64), pools_].concat())
}

/// An event, whose size has four bytes.
fn event(id: u64, fields: &[u8]) -> Vec<u8> {
    let fields = [number(id), fields.to_vec()].concat();
    let size = fields.len() + 4;
    let size =
        [0, 7, 14, 21].map(|shift| u8::try_from(size >> shift & 0x7f).unwrap() | if shift < 21 { 0x80 } else { 0 });
    [&size[..], &fields].concat()
}

/// A chunk of types, events and pools; `at` is added to where the pools are.
fn chunk(metadata: &[u8], events: &[u8], pools: &[u8], at: usize) -> Vec<u8> {
    let places = [68 + metadata.len() + events.len() + pools.len(), 68 + metadata.len() + events.len() + at, 68];
    let words = places.map(|place| (place as u64).to_be_bytes()).concat();
    let times = [1_700_000_000_000_000_000_u64, 0, 0, 1_000_000_000].map(u64::to_be_bytes).concat();
    [b"FLR\0\0\x02\0\0", &words[..], &times, &[0, 0, 0, 1], metadata, events, pools].concat()
}

/// One sample of one stack of one method.
fn sample() -> Vec<u8> {
    let constants = [
        (SYMBOL, 2, [vec![1], text("Shop"), vec![2], text("work")].concat()),
        (CLASS, 1, vec![1, 1]),
        (METHOD, 1, vec![1, 1, 2]),
        (STACK, 1, vec![1, 1, 1]),
        (STATE, 1, [vec![0], text("STATE_DEFAULT")].concat()),
    ];
    chunk(&metadata(&[]), &event(SAMPLE.into(), &[1, 0]), &pools(0, &constants), 0)
}

fn reads(recording: &[u8], memory: usize) -> Result<usize, String> {
    let upload = Upload {
        recording,
        labels: &[],
        service: "shop",
        series: &[],
        start: None,
        sample_rate: None,
        mark: None,
        times: (i64::MIN, i64::MAX),
    };
    let mut allowed = Allowed::new(Budget::new(memory, memory).hold());
    let profiles = read(&upload, &mut allowed).map_err(|refusal| refusal.message().to_owned())?;
    Ok(profiles.iter().flat_map(|profile| &profile.parts).map(|part| part.samples.len()).sum())
}

const BROKEN: &str = "the recording is cut off, or no recording of Java Flight Recorder";

#[test]
fn what_is_written_here_is_read_and_cut_off_anywhere_it_is_refused() {
    let whole = sample();
    assert_eq!(reads(&whole, MEMORY), Ok(1));
    assert_eq!(reads(&[&whole[..], &whole].concat(), MEMORY), Ok(1), "two chunks of the same stack");
    for end in 1..whole.len() {
        assert_eq!(reads(&whole[..end], MEMORY).unwrap_err(), BROKEN, "{end}");
    }
}

#[test]
fn numbers_of_things_that_are_not_there_reserve_nothing() {
    for count in [1 << 31, (1 << 31) - 1, u64::MAX, 1 << 62] {
        let many = |of: u8, bytes: Vec<u8>| {
            reads(&chunk(&metadata(&[]), &[], &pools(0, &[(of, count, bytes)]), 0), MEMORY).unwrap_err()
        };
        assert_eq!(many(SYMBOL, vec![1, 1]), BROKEN, "constants");
        // In UTF-16 too, of which each unit would be four bytes.
        for way in [3, 4, 5] {
            let string = [vec![1, way], number(count)].concat();
            let one = pools(0, &[(SYMBOL, 1, string)]);
            assert_eq!(reads(&chunk(&metadata(&[]), &[], &one, 0), MEMORY).unwrap_err(), BROKEN, "a string");
        }
        let frames = [vec![1], number(count)].concat();
        assert_eq!(
            reads(&chunk(&metadata(&[]), &[], &pools(0, &[(STACK, 1, frames)]), 0), MEMORY).unwrap_err(),
            BROKEN
        );
        let strings = event(0, &[vec![0, 0, 0], number(count)].concat());
        assert_eq!(reads(&chunk(&strings, &[], &pools(0, &[]), 0), MEMORY).unwrap_err(), BROKEN, "strings");
        let mut sized = sample();
        sized[8..16].copy_from_slice(&count.to_be_bytes());
        assert_eq!(reads(&sized, MEMORY).unwrap_err(), BROKEN, "a chunk");
    }
    let mut nothing = sample();
    nothing[8..16].fill(0);
    assert_eq!(reads(&nothing, MEMORY).unwrap_err(), BROKEN, "a chunk of no bytes would be read for ever");
    let endless = event(SAMPLE.into(), &[]);
    assert_eq!(
        reads(&chunk(&metadata(&[]), &[&endless[..], &[0, 0]].concat(), &pools(0, &[]), 0), MEMORY).unwrap_err(),
        BROKEN
    );
}

#[test]
fn types_of_types_without_end_are_refused() {
    let of_itself = |odd: &[(&str, u8, bool, bool)], bytes: &[u8]| {
        let constants = [(ODD, 1, [&[1], bytes].concat())];
        reads(&chunk(&metadata(odd), &[], &pools(0, &constants), 0), MEMORY)
    };
    assert_eq!(of_itself(&[("self", ODD, false, false)], &[]).unwrap_err(), BROKEN);
    assert_eq!(
        of_itself(&[("first", LONG, false, false), ("self", ODD, false, false)], &[1; 10_000]).unwrap_err(),
        BROKEN
    );
    assert_eq!(of_itself(&[("many", ODD, false, true)], &[1; 10_000]).unwrap_err(), BROKEN);
    // A thousand fields that are a thousand fields each, of nothing at all.
    let wide: Vec<_> = std::iter::repeat_n(("wide", ODD, false, false), 1_000).collect();
    assert_eq!(of_itself(&wide, &[]).unwrap_err(), BROKEN);
    let refused = of_itself(&[("what", 99, false, false)], &[1]).unwrap_err();
    assert_eq!(refused, "the recording has a field \"what\" of type 99, which it does not describe");
    // Elements within elements.
    let words = [text("root"), text("class")].concat();
    let nested = [vec![0, 0, 0, 2], words, [0, 0, 1].repeat(100_000)].concat();
    assert_eq!(reads(&chunk(&event(0, &nested), &[], &pools(0, &[]), 0), MEMORY).unwrap_err(), BROKEN);
}

#[test]
fn pools_that_lead_in_a_circle_or_overlap_are_refused() {
    let one = |delta: i64| pools(delta.cast_unsigned(), &[]);
    // On, to itself, back and forth.
    for delta in [1, i64::MAX, i64::MIN] {
        assert_eq!(reads(&chunk(&metadata(&[]), &[], &one(delta), 0), MEMORY).unwrap_err(), BROKEN, "{delta}");
    }
    let back = one(0);
    let second = one(-i64::try_from(back.len()).unwrap());
    assert_eq!(reads(&chunk(&metadata(&[]), &[], &[&back[..], &second].concat(), back.len()), MEMORY), Ok(0));
    // The first one says that it reaches over the second: what is behind its end is not its own.
    let mut long = pools(0, &[(SYMBOL, 1, vec![])]);
    long[0] += 20;
    let second = one(-i64::try_from(long.len()).unwrap());
    let both = [&long[..], &second, &[1; 64]].concat();
    assert_eq!(reads(&chunk(&metadata(&[]), &[], &both, long.len()), MEMORY).unwrap_err(), BROKEN);
}

/// Samples of methods, each in a stack of its own, that have so many names of 4 KB between them.
fn long_names(names: u64, methods: u64) -> Vec<u8> {
    let symbols: Vec<u8> =
        (1..=names).flat_map(|id| [number(id), text(&format!("{id:05}").repeat(1_000))].concat()).collect();
    let classes: Vec<u8> = (1..=names).flat_map(|id| [number(id), number(id)].concat()).collect();
    let named = |id: u64| [number(id), number(1 + id % names), number(1 + id / names % names)].concat();
    let constants = [
        (SYMBOL, names, symbols),
        (CLASS, names, classes),
        (METHOD, methods, (1..=methods).flat_map(named).collect()),
        (STACK, methods, (1..=methods).flat_map(|id| [number(id), vec![1], number(id)].concat()).collect()),
        (STATE, 1, [vec![0], text("STATE_DEFAULT")].concat()),
    ];
    let events: Vec<u8> = (1..=methods).flat_map(|id| event(SAMPLE.into(), &[number(id), vec![0]].concat())).collect();
    chunk(&metadata(&[]), &events, &pools(0, &constants), 0)
}

#[test]
fn names_are_not_multiplied() {
    // 80 MB of names.
    let different = long_names(100, 10_000);
    assert!(different.len() < 1 << 20, "{}", different.len());
    let refused = reads(&different, MEMORY).unwrap_err();
    assert_eq!(refused, "the recording takes more than the 12582912 bytes of memory that one may");
    // One name, which would be made of its parts 60,000 times.
    let same = long_names(1, 60_000);
    assert!(same.len() < 2 << 20, "{}", same.len());
    let refused = reads(&same, MEMORY).unwrap_err();
    assert_eq!(refused, "the request has more than 20000000 frames, samples and labels in all its stacks");
}

#[test]
fn a_recording_has_a_deadline() {
    let events = event(SAMPLE.into(), &[1, 0]).repeat(100_000);
    let constants = [(STATE, 1, [vec![0], text("STATE_DEFAULT")].concat())];
    let recording = chunk(&metadata(&[]), &events, &pools(0, &constants), 0);
    assert_eq!(reads(&recording, 64 << 20), Ok(1));
    let late = work::within(Duration::ZERO, Haste::Patient, Gone::default(), || reads(&recording, 64 << 20));
    assert_eq!(late.unwrap_err(), "the request takes too long to be worked on");
}
