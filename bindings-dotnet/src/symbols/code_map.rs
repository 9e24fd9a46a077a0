//! Which managed method an address is in.
//!
//! CoreCLR answers that question too, but not safely for code that was unloaded a moment ago (the process ends), and a
//! sample is always of a moment ago. So no address is asked about but those in images of assemblies, which stay:
//! * What is compiled is reported when it is, by a callback in which it is in use; code that takes the place of other code
//!   takes it here as well.
//! * What was compiled before is reported once, from CoreCLR's own list, while the one thread waits that takes code away
//!   ([`catch_up`]).
//!
//! Callbacks queue what they know; the map itself is the profiler's thread's. A sample is read up to a tenth of a second
//! after it was taken, and code of a dynamic method is replaced faster. So methods are numbered as they are reported, before
//! they run for the first time on that thread; a sample says how many there were, and a younger method is none of its frames, unless
//! another thread was at it while it was about to be reported: nothing else is known to have been there then, and its compilation had
//! begun. An event says nothing: its frames are called what is there when it is read.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use spanprof_core::FrameId;

use crate::clr::code::Body;
use crate::clr::info::{self, Clr, FunctionId};
use crate::libraries::registry;
use crate::memory;
use crate::stack::{modules, sample_header};
use crate::symbols::prologue::{EPILOGUE_BYTES, Prologue};
use crate::symbols::{resolver, shapes};

/// News that may wait for the profiler's thread; of methods beyond it the code stays unknown, and so becomes what may
/// have given them its place.
const MAX_NEWS: usize = 50_000;
/// Ranges that are kept; further ones stay unknown.
const MAX_RANGES: usize = 200_000;
/// Ranges that were replaced and are remembered: those of more than the last drain.
const MAX_REPLACED: usize = 4_096;
/// Compilations that are followed at a time, those that failed among them; they are let go together.
const MAX_BEGUN: usize = 256;
/// Code that nobody reported.
pub(crate) const UNKNOWN: &str = "(unknown method)";

/// A range of a method's code.
#[derive(Debug)]
pub(crate) struct Code {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Entered by on-stack replacement.
    pub(crate) is_osr: bool,
    function: FunctionId,
    /// Which method this is in the order of reports; 0 was there before and stays.
    number: u32,
    /// How many methods had been reported when its compilation began.
    begun: u32,
    /// What the method is called, once it was asked for.
    frame: Option<FrameId>,
    may_go: bool,
    /// Whether the method's start is the range's.
    is_whole: bool,
}

/// A method that was compiled.
#[derive(Debug)]
struct Compiled {
    function: FunctionId,
    number: u32,
    begun: u32,
    /// Of a function that may go away, which cannot be asked for later.
    frame: Option<FrameId>,
    bodies: Vec<Body>,
}

/// Code that had another method's place, and those who had it: from this number on, until that one.
#[derive(Debug)]
struct Replaced {
    range: Range<u64>,
    numbers: Range<u32>,
    frame: FrameId,
}

/// What the profiler's thread is to learn, in order. `None`: methods that may go away may have gone, and others taken their
/// place, while nobody reported it.
static NEWS: Mutex<Vec<Option<Compiled>>> = Mutex::new(Vec::new());

/// How many methods had been reported when the compilation of a function began that has not ended.
static BEGUN: Mutex<BTreeMap<FunctionId, u32>> = Mutex::new(BTreeMap::new());

/// A function is about to be compiled.
pub(crate) fn begun(function: FunctionId) {
    let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    if begun.len() >= MAX_BEGUN {
        begun.clear();
    }
    begun.insert(function, sample_header::method_count());
}

/// A function was compiled, on this thread, where it is in use. Some microseconds.
pub(crate) fn compiled(clr: Clr, function: FunctionId) {
    let begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner).remove(&function);
    report_all(clr, function, begun, MAX_NEWS);
}

/// A function was compiled at some time, and does not go away while this runs.
fn was_compiled(clr: Clr, function: FunctionId) {
    report_all(clr, function, None, MAX_RANGES);
}

/// Reports a function with its bodies. Only one that may go away has a number, before it is in use and after what was in its place was
/// dropped: no sample of that has a number as high. Other threads may be in the others already, whose place was nobody's before.
fn report_all(clr: Clr, function: FunctionId, begun: Option<u32>, most: usize) {
    let (number, frame) =
        if clr.stays(function) { (0, None) } else { (sample_header::next_number(), Some(id_of(clr, function))) };
    let bodies = clr.bodies((function, 0));
    shapes::learn(&bodies, frame.is_some());
    report(Compiled { function, number, begun: begun.unwrap_or(number), frame, bodies }, most);
}

/// Reports all functions that were compiled before CoreCLR reported any. Called by a finalizer: CoreCLR unloads
/// assemblies on that one thread alone, between finalizers, so none goes away while this one waits here, and of those that
/// are being taken down at this moment there is none. Milliseconds, once after each start.
pub(crate) fn catch_up() {
    let Some(clr) = info::listening() else { return };
    info::on_native_thread(|| clr.compiled_functions().into_iter().for_each(|function| was_compiled(clr, function)));
}

/// Reports what the calling thread runs: Main and what it called were compiled before we were attached.
pub(crate) fn note_own_stack() {
    let Some(clr) = info::attached() else { return };
    let mut functions = Vec::new();
    clr.snapshot(|function, _| {
        functions.push(function);
        functions.len() < spanprof_core::MAX_FRAMES
    });
    // This thread waits meanwhile, so its functions stay.
    info::on_native_thread(|| functions.into_iter().for_each(|function| was_compiled(clr, function)));
}

/// From here on CoreCLR reports what it compiles.
pub(crate) fn listen() -> Result<(), String> {
    // Before the first callback: what CoreCLR did until now nobody knows.
    note_gap();
    shapes::forget_what_may_go();
    info::listen()
}

/// CoreCLR did not report for a while.
fn note_gap() {
    NEWS.lock().unwrap_or_else(PoisonError::into_inner).push(None);
}

fn report(compiled: Compiled, most: usize) {
    let mut news = NEWS.lock().unwrap_or_else(PoisonError::into_inner);
    let has_memory = news.try_reserve(1).is_ok();
    if has_memory && news.len() < most {
        news.push(Some(compiled));
    } else if matches!(news.last(), Some(None)) {
        // Nobody told for a while already.
    } else if has_memory {
        news.push(None);
    } else if let Some(last) = news.last_mut() {
        *last = None;
    }
}

fn id_of(clr: Clr, function: FunctionId) -> FrameId {
    let name = clr.name_of(function).map(|name| name.text());
    resolver::id_of(name.as_deref().unwrap_or(UNKNOWN), "")
}

/// All code that was met so far.
#[derive(Debug, Default)]
pub(crate) struct CodeMap {
    by_start: BTreeMap<u64, Code>,
    /// Code that is gone, oldest first.
    replaced: VecDeque<Replaced>,
}

/// The map as of now.
pub(crate) fn with<T>(use_it: impl FnOnce(&mut CodeMap) -> T) -> T {
    static MAP: Mutex<Option<CodeMap>> = Mutex::new(None);
    let mut map = MAP.lock().unwrap_or_else(PoisonError::into_inner);
    let map = map.get_or_insert_default();
    // Not locked while CoreCLR is asked: its callbacks wait for this lock.
    let news = std::mem::take(&mut *NEWS.lock().unwrap_or_else(PoisonError::into_inner));
    for compiled in news {
        match compiled {
            Some(compiled) => map.learn(compiled),
            None => map.drop_what_may_go(),
        }
    }
    use_it(map)
}

/// Takes up what callbacks reported.
pub(crate) fn tick() {
    if info::attached().is_some() {
        with(|_| {});
    }
}

impl CodeMap {
    /// The managed code at `pc`, as it is now.
    pub(crate) fn code_at(&mut self, clr: Clr, pc: u64) -> Option<&Code> {
        if self.start_of(pc).is_none() && registry::is_image(pc) {
            let function = clr.function_at(pc)?;
            // Where the range is not known, this address alone is known.
            let body = clr.body_at(function, pc).unwrap_or_else(|| std::iter::once(pc..pc + 1).collect());
            // In a single file there is no table of its methods.
            if modules::assembly_row(pc).is_none() {
                shapes::learn(std::slice::from_ref(&body), false);
            }
            self.learn(Compiled { function: function.0, number: 0, begun: 0, frame: None, bodies: vec![body] });
        }
        self.by_start.get(&self.start_of(pc)?)
    }

    /// What the method at `pc` was called when so many methods were reported, and whether this is a body that was entered
    /// by replacement.
    pub(crate) fn id_at(&mut self, clr: Clr, pc: u64, method_count: u32) -> Option<(FrameId, bool)> {
        let start = self.code_at(clr, pc)?.start;
        if let Some(other) = self.by_start.get(&start).and_then(|code| self.other_at(code, pc, method_count)) {
            return Some((other, false));
        }
        let code = self.by_start.get_mut(&start)?;
        let frame = *code.frame.get_or_insert_with(|| id_of(clr, code.function));
        Some((frame, code.is_osr))
    }

    /// What was at `pc` when so many methods were reported, if that was not this code.
    fn other_at(&self, code: &Code, pc: u64, method_count: u32) -> Option<FrameId> {
        if !code.is_younger(method_count) {
            return None;
        }
        let was_there = |gone: &&Replaced| gone.range.contains(&pc) && gone.numbers.contains(&method_count);
        let before = self.replaced.iter().rev().find(was_there).map(|gone| gone.frame);
        // The runtime hands a method out a moment before it reports it.
        before.or_else(|| (code.begun > method_count).then(|| resolver::id_of(UNKNOWN, "")))
    }

    fn start_of(&self, pc: u64) -> Option<u64> {
        self.by_start.range(..=pc).next_back().filter(|(_, code)| pc < code.end).map(|(start, _)| *start)
    }

    /// Adds the bodies of a function, in place of what was there.
    fn learn(&mut self, Compiled { function, number, begun, frame, bodies }: Compiled) {
        for (place, Range { start, end }) in bodies.into_iter().flat_map(|body| body.into_iter().enumerate()) {
            // With each further body of a method all are told again; that one may go and was replaced by its like makes no difference.
            let is_same = |code: &Code| code.end == end && code.function == function;
            let is_known = |code: &Code| if code.may_go { frame == code.frame } else { frame.is_none() };
            let is_known = self.by_start.get(&start).is_some_and(|code| is_same(code) && is_known(code));
            if end <= start || is_known {
                continue;
            }
            self.make_room(start, end, number);
            if self.by_start.len() >= MAX_RANGES {
                continue;
            }
            let (is_whole, may_go) = (place == 0 && end - start > 1, frame.is_some());
            let mut code = Code { start, end, is_osr: false, function, number, begun, frame, may_go, is_whole };
            code.is_osr = code.prologue().is_some_and(|prologue| prologue.is_osr);
            self.by_start.insert(start, code);
        }
    }

    /// Takes out ranges that overlap this one, of the method with this number.
    fn make_room(&mut self, start: u64, end: u64, number: u32) {
        while let Some(at) =
            self.by_start.range(..end).next_back().filter(|(_, code)| code.end > start).map(|(at, _)| *at)
        {
            if let Some(code) = self.by_start.remove(&at)
                && let Some(frame) = code.frame
            {
                if self.replaced.len() == MAX_REPLACED {
                    self.replaced.pop_front();
                }
                let (range, numbers) = (code.start..code.end, code.number..number);
                self.replaced.push_back(Replaced { range, numbers, frame });
            }
        }
    }

    fn drop_what_may_go(&mut self) {
        self.by_start.retain(|_, code| !code.may_go);
    }
}

impl Code {
    /// Whether a sample is older that was taken when so many methods were reported.
    pub(crate) fn is_younger(&self, method_count: u32) -> bool {
        self.number > method_count
    }

    /// How the method begins, if the range is its start; from its code as it is now.
    pub(crate) fn prologue(&self) -> Option<Prologue> {
        self.is_whole.then(|| shapes::prologue_of(self.start, self.end)).flatten()
    }

    /// Code bytes from `pc` on, as many as an epilogue may have.
    pub(crate) fn bytes_from(&self, pc: u64) -> Vec<u8> {
        let mut copy = [0; EPILOGUE_BYTES];
        let length = usize::try_from(self.end.saturating_sub(pc)).unwrap_or(0).min(EPILOGUE_BYTES);
        memory::read(pc, &mut copy[..length]).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(function: FunctionId, number: u32, frame: Option<FrameId>, range: Range<u64>) -> Compiled {
        let bodies = vec![std::iter::once(range).collect()];
        Compiled { function, number, begun: number, frame, bodies }
    }

    #[test]
    fn new_code_takes_the_place_of_what_was_there() {
        // Real code, so that its bytes can be read: this very function's.
        let here = new_code_takes_the_place_of_what_was_there as *const () as u64;
        let mut map = CodeMap::default();
        map.learn(compiled(1, 1, Some(10), here..here + 32));
        map.learn(compiled(2, 2, Some(20), here + 32..here + 64));
        let function = |map: &CodeMap, at: u64| {
            map.start_of(here + at).and_then(|start| map.by_start.get(&start)).map(|code| code.function)
        };
        assert_eq!([0, 31, 32, 63, 64].map(|at| function(&map, at)), [Some(1), Some(1), Some(2), Some(2), None]);
        map.learn(compiled(3, 3, Some(30), here + 16..here + 48));
        assert_eq!([0, 16, 47, 48].map(|at| function(&map, at)), [None, Some(3), Some(3), None]);
    }

    #[test]
    fn a_sample_is_of_the_code_that_was_there_when_it_was_taken() {
        let here = a_sample_is_of_the_code_that_was_there_when_it_was_taken as *const () as u64;
        let frame = |name: &str| resolver::id_of(name, "");
        let (first, second, third) = (frame("First"), frame("Second"), frame("Third"));
        let mut map = CodeMap::default();
        map.learn(compiled(1, 4, Some(first), here..here + 32));
        map.learn(compiled(2, 6, Some(second), here + 16..here + 48));
        map.learn(compiled(3, 9, Some(third), here..here + 64));
        let is_younger = |method_count| map.by_start[&here].is_younger(method_count);
        assert_eq!([8, 9].map(is_younger), [true, false]);
        let before = |at: u64, method_count: u32| map.other_at(&map.by_start[&here], here + at, method_count);
        assert_eq!([4, 5].map(|method_count| before(31, method_count)), [Some(first); 2]);
        assert_eq!([6, 8].map(|method_count| before(31, method_count)), [Some(second); 2]);
        let unknown = Some(frame(UNKNOWN));
        assert_eq!([before(0, 3), before(32, 5), before(8, 7)], [unknown; 3], "nobody knows what was there");
        assert_eq!([9, 10].map(|method_count| before(8, method_count)), [None; 2]);
        for number in (10..).take(2 * MAX_REPLACED) {
            map.learn(compiled(1, number, Some([first, second][number as usize % 2]), here..here + 64));
        }
        assert_eq!(map.replaced.len(), MAX_REPLACED);
        map.learn(compiled(1, u32::MAX, map.by_start[&here].frame, here..here + 64));
        assert!(!map.by_start[&here].is_younger(u32::MAX - 1), "the same is told again");
    }

    #[test]
    fn what_runs_before_it_is_reported_is_known_unless_other_code_may_have_been_there() {
        let here = what_runs_before_it_is_reported_is_known_unless_other_code_may_have_been_there as *const () as u64;
        let unknown = Some(resolver::id_of(UNKNOWN, ""));
        let mut map = CodeMap::default();
        map.learn(Compiled { begun: 5, ..compiled(1, 9, Some(10), here..here + 32) });
        let other = |map: &CodeMap, method_count| map.other_at(&map.by_start[&here], here, method_count);
        assert_eq!([4, 5, 8, 9].map(|method_count| other(&map, method_count)), [unknown, None, None, None]);
        map.learn(Compiled { begun: 12, ..compiled(2, 15, Some(20), here..here + 32) });
        assert_eq!([12, 14, 15].map(|method_count| other(&map, method_count)), [Some(10), Some(10), None]);
    }

    #[test]
    fn once_news_were_lost_nothing_is_known_but_what_stays() {
        let here = once_news_were_lost_nothing_is_known_but_what_stays as *const () as u64;
        let mut map = CodeMap::default();
        map.learn(compiled(1, 1, None, here..here + 32));
        map.learn(compiled(2, 2, Some(20), here + 32..here + 64));
        map.drop_what_may_go();
        let functions: Vec<FunctionId> = map.by_start.values().map(|code| code.function).collect();
        assert_eq!(functions, [1]);
    }
}
