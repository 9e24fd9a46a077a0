//! The modules of the process, and the slots in them by which they call libc.
//!
//! A slot is written only if it holds the function's own address, or, outside of what is read-only after relocation, an address in
//! its own module: the stub that leads to ld.so until the function is called. Such a stub stays where any other module has a function
//! of that name too, as ld.so may find that one, and where the module means an older function of that name. What else is there stays:
//! another library's wrapper, or an offset that ld.so has not relocated yet, which is looked at again. Slots that cannot be written are
//! written through /proc/self/mem, so no page changes its protection under ld.so. Our own module, libc, ld.so and the vdso are left
//! alone, and we are never unloaded.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;
use std::{mem, ptr, thread};

use libc::dl_phdr_info;

use super::loader;
use super::real::{ALIASES, OLDEST, address_of, executable, has_older, libc};
use super::wrappers::{self, Address, OnUnlock, OnWait};
use crate::os::background_thread::StaysHere;
use crate::sample::elf::{Module, Name, R_X86_64_JUMP_SLOT, Slot, word};
use crate::sample::slot::{self, Written};

/// Functions of stdio whose addresses libraries take as values: libcurl sends a body again only where what reads it is still `fread`. By what
/// kind of slot a module calls and by what kind it takes an address is told apart by the kind alone.
const VALUES: [&CStr; 7] = [c"fread", c"fgets", c"getline", c"getdelim", c"fflush", c"fclose", c"pclose"];

/// Modules that are remembered as scanned; more are scanned again each time.
const MAX_MODULES: usize = 4_096;
/// So often modules are scanned at a start until there is a slot.
const TRIES: u32 = 8;
/// So often it is tried, at a start or a stop, to ask for modules while somebody else does; then it is left to the next tick.
const PATIENCE: u32 = 100;
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// What is known of the process's modules.
pub(crate) struct Modules {
    /// Functions by name, with aliases.
    functions: HashMap<&'static CStr, usize>,
    real: Vec<Address>,
    /// The names of functions that have a wrapper, by their numbers, the other names of some, and which of them other modules than libc
    /// have too, by any name.
    names: Vec<Name>,
    aliases: Vec<(Name, usize)>,
    contested: Vec<bool>,
    /// Of which libc has an older kind too.
    has_older: Vec<bool>,
    /// An address in each module that is left alone.
    left_alone: Vec<usize>,
    /// Modules that were asked which of the functions they have, in ld.so's order.
    known: Vec<Known>,
    /// ld.so's counts of modules opened and closed, when it was asked last.
    opened: u64,
    closed: u64,
    /// Slots were found that ld.so had not relocated yet.
    unfinished: bool,
    /// To scan so many times more, as ld.so may have had slots in hand.
    again: u32,
    slots: usize,
    /// Slots that the kernel lets nobody write, and whether that was told.
    refused: usize,
    is_refusal_told: bool,
    memory: Option<File>,
}

/// A module that was asked.
#[derive(Default)]
struct Known {
    base: usize,
    /// See [`Module::print`].
    print: u64,
    /// Whether its slots were judged too.
    is_seen: bool,
    /// Whether it has slots of these functions, and one of them, 0: none, in which we found or wrote our wrapper: which?
    has_slots: bool,
    witness: (usize, usize),
    /// In the list where modules are looked for that are gone.
    is_listed: bool,
}

impl Known {
    /// Whether it is this module that is there, or one of the same file that needs no more than it.
    ///
    /// # Safety
    /// `info` is that of a loaded module, which is `module`.
    unsafe fn is_still(&self, info: &dl_phdr_info, module: Option<&Module>) -> bool {
        // SAFETY: the caller's promise.
        if self.print != unsafe { Module::print(info, module) } {
            return false;
        }
        let (slot, wrapper) = self.witness;
        if slot == 0 {
            return !self.has_slots;
        }
        // SAFETY: its parts are where they were, so this is in one of them still.
        unsafe { (*ptr::with_exposed_provenance::<AtomicUsize>(slot)).load(Ordering::Acquire) == wrapper }
    }
}

// SAFETY: addresses of code, which are only compared and copied.
unsafe impl Send for Modules {}

static MODULES: Mutex<Option<Modules>> = Mutex::new(None);
/// Whether slots are to have our wrappers.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Puts wrappers into all slots, and from now on into those of modules that come. Returns how many slots have one, at least 1 where not
/// all could be judged yet ([`is_pending`]).
pub(super) fn install(shortest_ns: u64, on_wait: OnWait, on_unlock: OnUnlock) -> usize {
    // Without the lock, for which forks wait: to ask for functions waits for whoever loads a library.
    loader::prepare();
    let found = if lock().is_none() { Modules::find() } else { None };
    let mut modules = lock();
    if modules.is_none() {
        let Some(found) = found else { return 0 };
        wrappers::prepare(&found.real, shortest_ns, on_wait, on_unlock, on_module);
        *modules = Some(found);
    }
    drop(modules);
    INSTALLED.store(true, Ordering::Relaxed);
    wrappers::switch(true);
    let mut slots = 0;
    // Where another thread closes a module meanwhile nothing can be judged, so it is tried again, and by later ticks.
    for _ in 0..TRIES {
        let Some((found, is_finished)) = scan_anew() else { return 1 };
        slots = found.max(usize::from(!is_finished));
        if found > 0 || is_finished {
            break;
        }
    }
    slots
}

/// Scans all modules. How many slots have a wrapper, and whether all could be judged; `None` where somebody else asks for modules all the time.
fn scan_anew() -> Option<(usize, bool)> {
    for _ in 0..PATIENCE {
        let here = StaysHere::new();
        // Not held while it waits: forks wait for it.
        if let Some(modules) = lock().as_mut()
            && modules.scan_anew()
        {
            return Some((modules.slots, !modules.unfinished || loader::is_stuck()));
        }
        drop(here);
        thread::sleep(BETWEEN_TRIES);
    }
    None
}

/// Puts what was there back into all slots that still have a wrapper.
pub(super) fn uninstall() {
    wrappers::switch(false);
    INSTALLED.store(false, Ordering::Relaxed);
    if lock().is_some() {
        scan_anew();
    }
}

/// In a forked child: wrappers only call, wherever they are. Who looked for modules is not here, and may have held the lock.
pub(super) fn forget() {
    wrappers::switch(false);
    INSTALLED.store(false, Ordering::Relaxed);
}

/// Whether no slot has a wrapper yet, as somebody else asks for modules: a later tick gives them theirs.
pub(super) fn is_pending() -> bool {
    lock().as_ref().is_some_and(|modules| modules.slots == 0 && modules.unfinished && !loader::is_stuck())
}

/// Looks for modules that came since, on a tick of the profiler's thread.
pub(super) fn rescan() {
    if let Some(mut modules) = try_lock()
        && let Some(modules) = modules.as_mut()
    {
        let again = mem::take(&mut modules.again);
        let is_scanned = modules.scan(again > 0);
        modules.again = modules.again.max(if is_scanned { again.saturating_sub(1) } else { again });
    }
}

/// How many slots the kernel let nobody write, told once a start.
pub(crate) fn take_refused() -> Option<usize> {
    let mut modules = try_lock()?;
    let modules = modules.as_mut().filter(|modules| modules.refused > 0 && !modules.is_refusal_told)?;
    modules.is_refusal_told = true;
    Some(modules.refused)
}

/// A module was opened: somebody asks for one of its functions. Called by the wrapper of `dlsym`, so it waits for nobody.
extern "C" fn on_module() {
    let _here = StaysHere::new();
    if let Some(mut modules) = try_lock()
        && let Some(modules) = modules.as_mut()
    {
        modules.scan(false);
    }
}

/// The name of a function that has a wrapper.
pub(super) fn name(function: usize) -> Option<&'static str> {
    wrappers::name(function)?.to_str().ok()
}

/// The lock of all this, for a fork: taken by who looks for modules.
pub(crate) fn lock() -> MutexGuard<'static, Option<Modules>> {
    MODULES.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn try_lock() -> Option<MutexGuard<'static, Option<Modules>>> {
    match MODULES.try_lock() {
        Ok(modules) => Some(modules),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Modules {
    /// Where libc's functions are. `None`: not all are found that a wrapper calls before it waits.
    fn find() -> Option<Self> {
        let (wrapped, all) = wrappers::counts();
        let executable = executable();
        if executable.is_null() {
            return None;
        }
        let libc = libc(executable)?;
        let mut real = Vec::with_capacity(all);
        let mut functions = HashMap::with_capacity(2 * all);
        let mut names = Vec::with_capacity(wrapped);
        for function in 0..all {
            let name = wrappers::name(function)?;
            let address = address_of(name, executable, &libc);
            if function < wrapped {
                names.push(Name::new(name));
            }
            if function < wrapped && !address.is_null() {
                functions.insert(name, function);
            }
            real.push(address);
        }
        if real[wrapped..].iter().any(|address| address.is_null()) {
            return None;
        }
        let mut aliases = Vec::with_capacity(ALIASES.len());
        for (alias, name) in ALIASES {
            if let Some(&function) = functions.get(name) {
                functions.insert(alias, function);
                aliases.push((Name::new(alias), function));
            }
        }
        let on_module: extern "C" fn() = on_module;
        // SAFETY: getauxval may be called at any time.
        let of_kernel = [libc::AT_BASE, libc::AT_SYSINFO_EHDR].map(|kind| word(unsafe { libc::getauxval(kind) }));
        let in_libc = [c"read", c"pthread_mutex_lock"].map(|name| address_of(name, executable, &libc).addr());
        let left_alone = [on_module as usize].into_iter().chain(of_kernel).chain(in_libc).collect();
        let has_older = names.iter().zip(&real).map(|(name, real)| has_older(name, *real, &libc)).collect();
        Some(Self {
            functions,
            real,
            contested: vec![false; names.len()],
            has_older,
            names,
            aliases,
            left_alone,
            known: Vec::with_capacity(MAX_MODULES),
            opened: 0,
            closed: 0,
            unfinished: false,
            again: 0,
            slots: 0,
            refused: 0,
            is_refusal_told: false,
            memory: None,
        })
    }

    /// Scans all modules. A forked child that must not ask for them has what its parent found. False: somebody else asks, so it is left to
    /// the next tick.
    fn scan_anew(&mut self) -> bool {
        if loader::is_stuck() {
            return true;
        }
        for known in &mut self.known {
            (known.is_seen, known.has_slots, known.witness) = (false, false, (0, 0));
        }
        (self.refused, self.is_refusal_told) = (0, false);
        // Those of an earlier scan, if a stop could not take their wrappers away, are there as before.
        let slots = mem::take(&mut self.slots);
        self.unfinished = true;
        let is_scanned = self.scan(true);
        if !is_scanned {
            self.slots = slots;
        }
        is_scanned
    }

    /// Scans the modules that were not scanned yet; `all`: also where ld.so says that none came. False: somebody else asks for them.
    fn scan(&mut self, all: bool) -> bool {
        let Some(_held) = loader::try_hold() else { return false };
        // Before any of their slots is written: a module that was just opened may find functions in others that came with it.
        for asks in [true, false] {
            let mut scan = Scan { modules: self, all, asks, is_first: true, checks: false, next: 0 };
            // SAFETY: the callback takes what is passed on here, and ld.so holds its list for as long as it runs.
            unsafe { libc::dl_iterate_phdr(Some(on_phdr), (&raw mut scan).cast()) };
            if scan.checks {
                self.known.retain(|known| known.is_listed);
            }
        }
        self.memory = None;
        true
    }

    /// Scans a module. False: not all of its slots could be judged yet.
    fn scan_module(&mut self, module: &Module, known: &mut Known) -> bool {
        let mut is_finished = true;
        for Slot { address, kind, symbol, name } in module.slots() {
            // Of a module that may keep the function's address and compare it later that slot stays.
            let is_value = kind != R_X86_64_JUMP_SLOT && VALUES.contains(&name);
            if let Some(&function) = self.functions.get(name).filter(|_| !is_value) {
                let may_be_stub = kind == R_X86_64_JUMP_SLOT
                    && !self.contested[function]
                    && !(self.has_older[function] && module.asks_for(symbol, OLDEST));
                known.has_slots = true;
                let (is_judged, wrapper) = self.set(module, address, may_be_stub, function);
                is_finished &= is_judged;
                if let Some(wrapper) = wrapper {
                    self.slots += 1;
                    known.witness = (address, wrapper);
                }
            }
        }
        is_finished
    }

    /// Gives a slot its wrapper, or takes it away. Whether it could be judged: ld.so has relocated it; and the wrapper that it has.
    fn set(&mut self, module: &Module, slot: usize, may_be_stub: bool, function: usize) -> (bool, Option<usize>) {
        let Some(wrapper) = wrappers::wrapper(function).map(|wrapper| wrapper.addr()) else { return (true, None) };
        let real = self.real[function].addr();
        let place = ptr::with_exposed_provenance::<AtomicUsize>(slot);
        // SAFETY: a slot of a module that is loaded; aligned, as relocations of a word are.
        let value = unsafe { (*place).load(Ordering::Acquire) };
        let is_read_only = module.read_only.contains(&slot);
        if !INSTALLED.load(Ordering::Relaxed) {
            if value == wrapper {
                slot::write(slot, wrapper, real, is_read_only, &mut self.memory);
            }
            return (true, None);
        }
        if value == wrapper {
            return (true, Some(wrapper));
        }
        if module.base != 0 && value < module.range.end - module.range.start {
            return (false, None);
        }
        let is_stub = may_be_stub && !module.binds_now && !is_read_only && module.range.contains(&value);
        if value != real && !is_stub {
            return (true, None);
        }
        match slot::write(slot, value, wrapper, is_read_only, &mut self.memory) {
            Written::Yes => (true, Some(wrapper)),
            Written::Changed | Written::NotNow => (false, None),
            Written::Never => {
                self.refused += 1;
                (true, None)
            }
        }
    }

    /// Notes which functions a module has that libc has too.
    fn ask(&mut self, module: &Module) {
        for (contested, name) in self.contested.iter_mut().zip(&self.names) {
            *contested |= module.defines(name);
        }
        for (alias, function) in &self.aliases {
            self.contested[*function] |= module.defines(alias);
        }
    }
}

/// One scan of the list of modules.
struct Scan<'a> {
    modules: &'a mut Modules,
    all: bool,
    /// Whether modules are asked which functions they have, before their slots are looked at.
    asks: bool,
    is_first: bool,
    /// Whether a module was closed, so that another one may be where one was.
    checks: bool,
    /// Where in what is known the next module stands, if none came or went.
    next: usize,
}

impl Scan<'_> {
    /// Where in what is known the module of this base stands.
    fn find(&mut self, base: usize) -> Option<usize> {
        let known = &self.modules.known;
        let is_it = |known: &Known| known.base == base;
        let at = if known.get(self.next).is_some_and(is_it) { Some(self.next) } else { known.iter().position(is_it) };
        self.next = at.map_or(self.next, |at| at + 1);
        at
    }

    /// Looks at a module, in its turn.
    ///
    /// # Safety
    /// `info` is that of a loaded module.
    unsafe fn look(&mut self, info: &dl_phdr_info) {
        let base = word(info.dlpi_addr);
        let mut at = self.find(base);
        let is_done = |known: &Known, asks: bool| asks || known.is_seen;
        if let Some(at) = at
            && !self.checks
            && is_done(&self.modules.known[at], self.asks)
        {
            return;
        }
        // SAFETY: the caller's promise.
        let module = unsafe { Module::read(info) };
        if let Some(there) = at
            && self.checks
        {
            let known = &mut self.modules.known[there];
            known.is_listed = true;
            // SAFETY: the caller's promise.
            if unsafe { known.is_still(info, module.as_ref()) } {
                if is_done(known, self.asks) {
                    return;
                }
            } else {
                self.modules.known.remove(there);
                self.next = there;
                at = None;
            }
        }
        let is_left = |module: &Module| self.modules.left_alone.iter().any(|address| module.range.contains(address));
        let ours = module.as_ref().filter(|module| !is_left(module));
        if self.asks {
            if let Some(module) = ours {
                self.modules.ask(module);
            }
            if self.modules.known.len() < MAX_MODULES {
                // SAFETY: the caller's promise.
                let print = unsafe { Module::print(info, module.as_ref()) };
                self.modules.known.insert(self.next, Known { base, print, is_listed: true, ..Known::default() });
                self.next += 1;
            }
            return;
        }
        if at.is_none() && self.modules.known.len() < MAX_MODULES {
            // It came in between.
            self.modules.unfinished = true;
            return;
        }
        let mut known = at.map(|at| mem::take(&mut self.modules.known[at])).unwrap_or_default();
        known.is_seen = ours.is_none_or(|module| self.modules.scan_module(module, &mut known));
        self.modules.unfinished |= !known.is_seen;
        if let Some(at) = at {
            self.modules.known[at] = known;
        }
    }
}

/// Called by ld.so for each module. Not 0: enough.
unsafe extern "C" fn on_phdr(info: *mut dl_phdr_info, _: usize, scan: *mut c_void) -> c_int {
    // SAFETY: what `scan` passed, whose borrow lasts.
    let scan = unsafe { &mut *scan.cast::<Scan<'_>>() };
    // SAFETY: valid for the call.
    let info = unsafe { &*info };
    if mem::take(&mut scan.is_first) {
        let modules = &mut *scan.modules;
        let is_same = info.dlpi_adds == modules.opened && info.dlpi_subs == modules.closed;
        if is_same && !scan.all && !modules.unfinished {
            return 1;
        }
        if info.dlpi_subs != modules.closed {
            scan.checks = true;
            modules.known.iter_mut().for_each(|known| known.is_listed = false);
        }
        if scan.asks {
            modules.closed = info.dlpi_subs;
        } else {
            if !is_same {
                modules.again = 2;
            }
            (modules.opened, modules.closed, modules.unfinished) = (info.dlpi_adds, info.dlpi_subs, false);
        }
    }
    // SAFETY: the module is loaded as long as ld.so calls us for it.
    unsafe { scan.look(info) };
    0
}
