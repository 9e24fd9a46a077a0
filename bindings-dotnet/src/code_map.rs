//! Which managed method an address is in, as CoreCLR tells, kept by ranges of code.
//!
//! On the profiler's thread. Code that can go away is only asked for while it is compiled, see [`clr`](crate::clr), and may
//! make room for other code at the same address: a dynamic method's end is told, and what was not asked for in two seconds
//! is asked again.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clr::{Body, Clr, FunctionId};
use crate::prologue::{self, EPILOGUE_BYTES, PROLOGUE_BYTES, Prologue};
use crate::unwind::OSR_METHODS;
use crate::{call_sites, memory, resolver};

/// How long a range is believed.
const FRESH: Duration = Duration::from_secs(2);
/// Ranges that are kept; then all are forgotten, and asked for again.
const MAX_RANGES: usize = 100_000;
const UNKNOWN: &str = "(dynamic) (unknown)";
/// Longer methods without a frame are not searched for call sites.
const MAX_SEARCHED: u64 = 16 << 10;

/// A range of a method's code.
#[derive(Debug)]
pub(crate) struct Code {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// What the method is called.
    pub(crate) word: u64,
    /// None of a part that does not begin with the method's start.
    pub(crate) prologue: Option<Prologue>,
    function: (FunctionId, usize),
    call_sites: Vec<u64>,
    checked: Instant,
}

impl Code {
    /// Code bytes from `pc` on, as many as an epilogue may have.
    pub(crate) fn bytes_from(&self, pc: u64) -> Vec<u8> {
        let mut copy = [0; EPILOGUE_BYTES];
        let length = usize::try_from(self.end.saturating_sub(pc)).unwrap_or(0).min(EPILOGUE_BYTES);
        memory::read(pc, &mut copy[..length]).to_vec()
    }
}

/// All code that was met so far.
#[derive(Debug, Default)]
pub(crate) struct CodeMap {
    by_start: BTreeMap<u64, Code>,
    by_function: HashMap<FunctionId, Vec<u64>>,
    names: HashMap<FunctionId, u64>,
    /// Functions that can go away.
    told: HashMap<FunctionId, Told>,
}

static MAP: Mutex<Option<CodeMap>> = Mutex::new(None);
/// Functions whose code is gone. Not MAP, which is held while CoreCLR is asked.
static UNLOADED: Mutex<Vec<FunctionId>> = Mutex::new(Vec::new());

/// What the compilation of code told that can go away.
#[derive(Debug)]
struct Told {
    function: FunctionId,
    word: u64,
    bodies: Vec<Body>,
}

/// Some code here can go away.
static ANY_TOLD: AtomicBool = AtomicBool::new(false);
/// Not yet in the map.
static TOLD: Mutex<Vec<Told>> = Mutex::new(Vec::new());
/// Compilations that may wait; of further ones the methods are "(dynamic) (unknown)".
const MAX_TOLD: usize = 10_000;

/// A function was compiled, on this thread, where it is in use. 1 µs for ordinary ones, which are asked for when they are
/// met in a sample.
pub(crate) fn compiled(clr: Clr, function: FunctionId) {
    if clr.stays(function) {
        // It may have got the number of one that is gone.
        if ANY_TOLD.load(Ordering::Relaxed) {
            unloaded(function);
        }
        return;
    }
    ANY_TOLD.store(true, Ordering::Relaxed);
    let name = clr.name_of(function).map(|name| name.text());
    let word = resolver::word_of(name.as_deref().unwrap_or(UNKNOWN), "");
    let bodies = clr.bodies((function, 0));
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.len() < MAX_TOLD {
        told.push(Told { function, word, bodies });
    }
}

/// A dynamic method is gone. On any thread.
pub(crate) fn unloaded(function: FunctionId) {
    let mut unloaded = UNLOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if unloaded.len() < MAX_RANGES {
        unloaded.push(function);
    }
}

/// The map, without what is gone.
pub(crate) fn with<T>(use_it: impl FnOnce(&mut CodeMap) -> T) -> T {
    let mut map: MutexGuard<'_, Option<CodeMap>> = MAP.lock().unwrap_or_else(PoisonError::into_inner);
    let map = map.get_or_insert_default();
    // What is gone first: a function that was compiled since may have got its number.
    let gone = std::mem::take(&mut *UNLOADED.lock().unwrap_or_else(PoisonError::into_inner));
    for function in gone {
        map.forget(function);
        map.told.remove(&function);
    }
    for told in std::mem::take(&mut *TOLD.lock().unwrap_or_else(PoisonError::into_inner)) {
        map.forget(told.function);
        if map.told.len() >= 2 * MAX_TOLD {
            map.told.clear();
        }
        map.told.insert(told.function, told);
    }
    use_it(map)
}

impl CodeMap {
    /// The managed code at `pc`.
    pub(crate) fn code_at(&mut self, clr: Clr, pc: u64) -> Option<&Code> {
        let known = self.by_start.range(..=pc).next_back().filter(|(_, code)| pc < code.end).map(|(start, _)| *start);
        if let Some(start) = known {
            let code = self.by_start.get_mut(&start)?;
            if code.checked.elapsed() < FRESH || clr.function_at(pc) == Some(code.function) {
                code.checked = Instant::now();
                return self.by_start.get(&start);
            }
            let (function, _) = code.function;
            self.forget(function);
        }
        let function = clr.function_at(pc)?;
        let start = self.learn(clr, function, pc);
        self.by_start.get(&start)
    }

    fn learn(&mut self, clr: Clr, function: (FunctionId, usize), pc: u64) -> u64 {
        if self.by_start.len() >= MAX_RANGES {
            let functions: Vec<FunctionId> = self.by_function.keys().copied().collect();
            functions.into_iter().for_each(|function| self.forget(function));
        }
        let (word, body) = match self.told.get(&function.0) {
            Some(told) => {
                (told.word, told.bodies.iter().find(|body| body.iter().any(|part| part.contains(&pc))).cloned())
            }
            None => self.ask(clr, function, pc),
        };
        // Where the range is not known, this address alone is.
        let parts = body.unwrap_or_else(|| [pc..pc + 1].into());
        let mut here = pc;
        for (place, Range { start, end }) in parts.into_iter().enumerate() {
            let size = end.saturating_sub(start);
            let whole = place == 0 && size > 1;
            let prologue = whole.then(|| {
                let mut copy = [0; PROLOGUE_BYTES];
                let length = usize::try_from(size).unwrap_or(0).min(PROLOGUE_BYTES);
                Prologue::decode(memory::read(start, &mut copy[..length]))
            });
            let call_sites = learn_call_sites(start, size, prologue.as_ref());
            if (start..end).contains(&pc) {
                here = start;
            }
            let code = Code { start, end, word, prologue, function, call_sites, checked: Instant::now() };
            let is_osr = code.is_osr();
            self.by_start.insert(start, code);
            self.by_function.entry(function.0).or_default().push(start);
            if is_osr {
                self.tell_osr();
            }
        }
        here
    }

    /// Asks for a function that nobody told of: it stays, or was compiled before we were attached.
    fn ask(&mut self, clr: Clr, function: (FunctionId, usize), pc: u64) -> (u64, Option<Body>) {
        if let Some(word) = self.names.get(&function.0) {
            return (*word, clr.body_at(function, pc));
        }
        if !clr.stays(function.0) {
            return (resolver::word_of(UNKNOWN, ""), None);
        }
        let name = clr.name_of(function.0).map(|name| name.text());
        let word = resolver::word_of(name.as_deref().unwrap_or("(unknown method)"), "");
        self.names.insert(function.0, word);
        (word, clr.body_at(function, pc))
    }

    fn forget(&mut self, function: FunctionId) {
        self.names.remove(&function);
        let mut was_osr = false;
        for start in self.by_function.remove(&function).unwrap_or_default() {
            if let Some(code) = self.by_start.remove(&start) {
                was_osr |= code.is_osr();
                code.call_sites.into_iter().for_each(call_sites::forget);
            }
        }
        if was_osr {
            self.tell_osr();
        }
    }

    /// Shows the handler which code was entered by on-stack replacement.
    fn tell_osr(&self) {
        let osr = self.by_start.values().filter(|code| code.is_osr());
        let ranges: Vec<(u64, u64)> = osr.map(|code| (code.start, code.end)).collect();
        OSR_METHODS.replace(&ranges);
    }
}

impl Code {
    /// Entered by on-stack replacement.
    pub(crate) fn is_osr(&self) -> bool {
        self.prologue.as_ref().is_some_and(|prologue| prologue.is_osr)
    }
}

/// Shows the handler where a method without a frame calls others.
fn learn_call_sites(start: u64, size: u64, prologue: Option<&Prologue>) -> Vec<u64> {
    let Some(bytes) = prologue.and_then(Prologue::frameless_bytes).filter(|_| size <= MAX_SEARCHED) else {
        return Vec::new();
    };
    let mut copy = vec![0; usize::try_from(size).unwrap_or(0)];
    let sites: Vec<u64> =
        prologue::call_sites(memory::read(start, &mut copy)).map(|offset| start + u64::from(offset)).collect();
    sites.iter().for_each(|site| call_sites::add(*site, bytes));
    sites
}
