//! Questions to CoreCLR: ICorProfilerInfo12 and IMetaDataImport, as far as they are needed.
//!
//! The indices and signatures are those of corprof.idl and cor.h, which only ever grow. A managed thread may not ask for
//! names or code (0x80131363); the profiler's own threads are native, and may, and so may a callback on any thread.
//!
//! Code that can go away (dynamic methods, collectible assemblies) is asked for where it is in use alone, as
//! [`code_map`](crate::symbols::code_map) says: a moment later its descriptions may be freed, and CoreCLR does not check. None of
//! our locks is held by a thread that runs managed code while it waits here, as CoreCLR may wait for a garbage collection.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::com::{Guid, Hresult, S_OK};

/// Calls function `$index` of a COM object.
macro_rules! call {
    ($object:expr, $index:expr, ($($type:ty),*) $(, $argument:expr)*) => {{
        let object: *mut std::ffi::c_void = $object;
        let table: *const *const () = *object.cast();
        let function: unsafe extern "system" fn(*mut std::ffi::c_void, $($type),*) -> crate::com::Hresult =
            std::mem::transmute(*table.add($index));
        function(object, $($argument),*)
    }};
}
pub(crate) use call;

static METADATA_IMPORT: Guid = Guid::metadata_import();

/// Stack snapshots, which must be asked for at once.
const MASK_ALWAYS: u32 = 0x1000_0000;
/// What was compiled, and threads that start.
const MASK_LISTENING: u32 = MASK_ALWAYS | 0x20 | 0x200;
/// EventPipe.
const MASK_HIGH: u32 = 0x80;
/// As many of the list's functions are taken at a time.
const FUNCTIONS: u32 = 1_024;

/// ICorProfilerInfo12, null before it is attached. CoreCLR keeps it for ever.
static INFO: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// Whether callbacks come.
static LISTENING: AtomicBool = AtomicBool::new(false);

/// CoreCLR, once we are attached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clr(*mut c_void);

// SAFETY: ICorProfilerInfo may be called on any thread.
unsafe impl Send for Clr {}
// SAFETY: as above.
unsafe impl Sync for Clr {}

/// What of a method is in metadata, before it is made readable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MethodName {
    /// Namespace and type, nested ones separated by +, with arity (`1) and without arguments; "" for a dynamic method.
    pub(crate) class: String,
    /// Arguments of the type, as names of this kind.
    pub(crate) class_arguments: Vec<String>,
    pub(crate) method: String,
    pub(crate) method_arguments: Vec<String>,
}

/// A function to CoreCLR.
pub(crate) type FunctionId = usize;
/// Ranges of code that are one compiled method.
pub(crate) type Body = Vec<Range<u64>>;
type ClassId = usize;
type ModuleId = usize;

/// What CoreCLR says of a function. `class` 0: its code is shared by types.
struct Function<'a> {
    class: ClassId,
    module: ModuleId,
    token: u32,
    arguments: &'a [ClassId],
}

/// What CoreCLR says of a type.
enum Class {
    /// Of this type.
    Array(ClassId),
    Declared {
        module: ModuleId,
        token: u32,
        arguments: Vec<ClassId>,
    },
}

/// Levels of types within types that are looked at.
const MAX_DEPTH: u32 = 8;

/// Takes what CoreCLR passes to a profiler that attaches.
///
/// # Safety
/// `info` is an ICorProfilerInfo12.
pub(crate) unsafe fn initialize(info: *mut c_void) -> Hresult {
    let result = Clr(info).set_events(MASK_ALWAYS);
    if result >= 0 {
        // Release: pairs with `attached`.
        INFO.store(info, Ordering::Release);
    }
    result
}

/// CoreCLR, if we are attached.
pub(crate) fn attached() -> Option<Clr> {
    let info = INFO.load(Ordering::Acquire);
    (!info.is_null()).then_some(Clr(info))
}

/// CoreCLR, while it tells what it compiles.
pub(crate) fn listening() -> Option<Clr> {
    attached().filter(|_| LISTENING.load(Ordering::Relaxed))
}

/// Callbacks come from here on. An attached profiler stays, so this is what a start and a stop can do.
pub(crate) fn listen() -> Result<(), String> {
    let clr = attached().ok_or("no profiler is attached")?;
    match on_native_thread(move || clr.set_events(MASK_LISTENING)) {
        Some(0..) => {
            LISTENING.store(true, Ordering::Relaxed);
            Ok(())
        }
        Some(result) => Err(format!("the runtime refused its callbacks: 0x{result:08x}")),
        None => Err("a thread could not be started".to_owned()),
    }
}

/// No callback comes any more, and a method that is compiled costs nothing.
pub(crate) fn silence() {
    if let Some(clr) = listening() {
        LISTENING.store(false, Ordering::Relaxed);
        on_native_thread(move || clr.set_events(MASK_ALWAYS));
    }
}

/// Threads that run managed code may not start sessions, nor ask for names.
pub(crate) fn on_native_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("spanprof-clr".into()).spawn_scoped(scope, work).ok()?;
        thread.join().ok()
    })
}

/// The text in a buffer that CoreCLR filled, `length` with the zero at its end.
fn text(buffer: &[u16], length: u32) -> String {
    let length = (length as usize).saturating_sub(1).min(buffer.len());
    String::from_utf16_lossy(&buffer[..length])
}

impl Clr {
    fn set_events(self, low: u32) -> Hresult {
        // SAFETY: SetEventMask2.
        unsafe { call!(self.0, 82, (u32, u32), low, MASK_HIGH) }
    }

    /// The function whose code is at `address` of an assembly's image (see [`code_map`](crate::symbols::code_map)), and which of
    /// its rewritten bodies that is.
    pub(crate) fn function_at(self, address: u64) -> Option<(FunctionId, usize)> {
        let (mut function, mut rejit) = (0, 0);
        let address = usize::try_from(address).ok()?;
        // SAFETY: GetFunctionFromIP3.
        let result =
            unsafe { call!(self.0, 88, (usize, *mut usize, *mut usize), address, &raw mut function, &raw mut rejit) };
        (result == S_OK && function != 0).then_some((function, rejit))
    }

    /// The body of `function` that `address` is in; the part that begins with the method's start comes first.
    pub(crate) fn body_at(self, function: (FunctionId, usize), address: u64) -> Option<Body> {
        self.bodies(function).into_iter().find(|body| body.iter().any(|part| part.contains(&address)))
    }

    /// The methods that CoreCLR has compiled, dynamic ones left out. They may be gone a moment later.
    pub(crate) fn compiled_functions(self) -> Vec<FunctionId> {
        let mut list = ptr::null_mut();
        // SAFETY: EnumJITedFunctions.
        let result = unsafe { call!(self.0, 57, (*mut *mut c_void), &raw mut list) };
        if result < 0 || list.is_null() {
            return Vec::new();
        }
        let mut functions = Vec::new();
        loop {
            // COR_PRF_FUNCTION: a function, and which of its rewritten bodies.
            let (mut some, mut count) = ([(0_usize, 0_usize); FUNCTIONS as usize], 0_u32);
            // SAFETY: Next of ICorProfilerFunctionEnum, which writes no more than it is told there is room for.
            let result = unsafe {
                call!(list, 7, (u32, *mut (usize, usize), *mut u32), FUNCTIONS, some.as_mut_ptr(), &raw mut count)
            };
            let count = (count as usize).min(some.len());
            functions.extend(some[..count].iter().map(|(function, _)| *function));
            if result != S_OK || count == 0 {
                break;
            }
        }
        // SAFETY: Release of the list.
        unsafe { call!(list, 2, ()) };
        functions
    }

    /// All bodies of a function: a tier each.
    pub(crate) fn bodies(self, (function, rejit): (FunctionId, usize)) -> Vec<Body> {
        let (mut starts, mut count) = ([0_usize; 32], 0_u32);
        // SAFETY: GetNativeCodeStartAddresses.
        let result = unsafe {
            call!(
                self.0,
                90,
                (usize, usize, u32, *mut u32, *mut usize),
                function,
                rejit,
                32,
                &raw mut count,
                starts.as_mut_ptr()
            )
        };
        if result < 0 {
            return Vec::new();
        }
        let body = |start: &usize| {
            let (mut parts, mut count) = ([(0_usize, 0_usize); 8], 0_u32);
            // SAFETY: GetCodeInfo4 fills COR_PRF_CODE_INFO: an address and a size.
            let result = unsafe {
                call!(
                    self.0,
                    92,
                    (usize, u32, *mut u32, *mut (usize, usize)),
                    *start,
                    8,
                    &raw mut count,
                    parts.as_mut_ptr()
                )
            };
            let parts = &parts[..(count as usize).min(8)];
            (result >= 0).then(|| parts.iter().map(|(start, size)| *start as u64..(start + size) as u64).collect())
        };
        starts[..(count as usize).min(32)].iter().filter_map(body).collect()
    }

    /// Whether a function stays for as long as the process does. False also where that is not known: of code that is
    /// shared by types, whose arguments are not told.
    pub(crate) fn stays(self, function: FunctionId) -> bool {
        if self.is_dynamic(function) {
            return false;
        }
        let mut arguments: [ClassId; 16] = [0; 16];
        let Some(Function { class, module, arguments, .. }) = self.function(function, &mut arguments) else {
            return false;
        };
        // A generic method or type of a library that stays goes away with the type that it was made for.
        self.module_stays(module)
            && self.class_stays(class, 0)
            && arguments.iter().all(|class| self.class_stays(*class, 0))
    }

    fn class_stays(self, class: ClassId, depth: u32) -> bool {
        depth <= MAX_DEPTH
            && match self.class_info(class) {
                None => false,
                Some(Class::Array(base)) => self.class_stays(base, depth + 1),
                Some(Class::Declared { module, arguments, .. }) => {
                    self.module_stays(module) && arguments.iter().all(|class| self.class_stays(*class, depth + 1))
                }
            }
    }

    fn module_stays(self, module: ModuleId) -> bool {
        const DYNAMIC: u32 = 4;
        const COLLECTIBLE: u32 = 8;
        let (mut base, mut length, mut assembly, mut flags) = (0_usize, 0_u32, 0_usize, 0_u32);
        // SAFETY: GetModuleInfo2 without the name.
        let result = unsafe {
            call!(
                self.0,
                70,
                (ModuleId, *mut usize, u32, *mut u32, *mut u16, *mut usize, *mut u32),
                module,
                &raw mut base,
                0,
                &raw mut length,
                ptr::null_mut(),
                &raw mut assembly,
                &raw mut flags
            )
        };
        result >= 0 && flags & (DYNAMIC | COLLECTIBLE) == 0
    }

    /// Where a function is declared, and as many of its type arguments as there is room for.
    fn function(self, function: FunctionId, arguments: &mut [ClassId]) -> Option<Function<'_>> {
        let (mut class, mut module, mut token, mut count) = (0, 0, 0_u32, 0_u32);
        // SAFETY: GetFunctionInfo2, which writes no more arguments than it is told there is room for.
        let result = unsafe {
            call!(
                self.0,
                38,
                (usize, usize, *mut ClassId, *mut ModuleId, *mut u32, u32, *mut u32, *mut ClassId),
                function,
                0,
                &raw mut class,
                &raw mut module,
                &raw mut token,
                u32::try_from(arguments.len()).unwrap_or(0),
                &raw mut count,
                arguments.as_mut_ptr()
            )
        };
        let count = arguments.len().min(count as usize);
        (result >= 0).then(|| Function { class, module, token, arguments: &arguments[..count] })
    }

    fn is_dynamic(self, function: FunctionId) -> bool {
        let mut is_dynamic = 0_i32;
        // SAFETY: IsFunctionDynamic.
        let result = unsafe { call!(self.0, 87, (usize, *mut i32), function, &raw mut is_dynamic) };
        result >= 0 && is_dynamic != 0
    }

    /// What a function is called, which [`stays`](Self::stays) or was just compiled.
    pub(crate) fn name_of(self, function: FunctionId) -> Option<MethodName> {
        if self.is_dynamic(function) {
            return self.name_of_dynamic(function);
        }
        let mut arguments: [ClassId; 16] = [0; 16];
        let Function { class, module, token, arguments } = self.function(function, &mut arguments)?;
        let metadata = self.metadata(module)?;
        let (method, owner) = metadata.method(token)?;
        let (class, class_arguments) = match class {
            // Code that is shared by types: its owner alone is known.
            0 => (metadata.class(owner, 0), Vec::new()),
            class => self.class(class, 0),
        };
        let method_arguments = arguments.iter().map(|class| self.class_text(*class, 0)).collect();
        Some(MethodName { class, class_arguments, method, method_arguments })
    }

    fn name_of_dynamic(self, function: FunctionId) -> Option<MethodName> {
        let (mut module, mut signature, mut size, mut length) = (0_usize, 0_usize, 0_u32, 0_u32);
        let mut name = [0_u16; 256];
        // SAFETY: GetDynamicFunctionInfo.
        let result = unsafe {
            call!(
                self.0,
                89,
                (usize, *mut ModuleId, *mut usize, *mut u32, u32, *mut u32, *mut u16),
                function,
                &raw mut module,
                &raw mut signature,
                &raw mut size,
                256,
                &raw mut length,
                name.as_mut_ptr()
            )
        };
        (result >= 0).then(|| MethodName { method: text(&name, length), ..MethodName::default() })
    }

    /// The name of a type, and those of its arguments.
    fn class(self, class: ClassId, depth: u32) -> (String, Vec<String>) {
        let unknown = || ("?".to_owned(), Vec::new());
        let info = if depth > MAX_DEPTH { None } else { self.class_info(class) };
        match info {
            None => unknown(),
            Some(Class::Array(base)) => (self.class_text(base, depth + 1) + "[]", Vec::new()),
            Some(Class::Declared { module, token, arguments }) => {
                let Some(metadata) = self.metadata(module) else { return unknown() };
                let arguments = arguments.iter().map(|class| self.class_text(*class, depth + 1)).collect();
                (metadata.class(token, 0), arguments)
            }
        }
    }

    fn class_info(self, class: ClassId) -> Option<Class> {
        if class == 0 {
            return None;
        }
        let (mut element, mut base, mut rank) = (0_u32, 0, 0_u32);
        // SAFETY: IsArrayClass.
        let result = unsafe {
            call!(
                self.0,
                11,
                (usize, *mut u32, *mut ClassId, *mut u32),
                class,
                &raw mut element,
                &raw mut base,
                &raw mut rank
            )
        };
        if result == S_OK && base != 0 {
            return Some(Class::Array(base));
        }
        let (mut module, mut token, mut parent, mut count) = (0, 0_u32, 0, 0_u32);
        let mut arguments: [ClassId; 16] = [0; 16];
        // SAFETY: GetClassIDInfo2.
        let result = unsafe {
            call!(
                self.0,
                41,
                (usize, *mut ModuleId, *mut u32, *mut ClassId, u32, *mut u32, *mut ClassId),
                class,
                &raw mut module,
                &raw mut token,
                &raw mut parent,
                16,
                &raw mut count,
                arguments.as_mut_ptr()
            )
        };
        let arguments = arguments[..(count as usize).min(16)].to_vec();
        (result >= 0).then_some(Class::Declared { module, token, arguments })
    }

    fn class_text(self, class: ClassId, depth: u32) -> String {
        let (name, arguments) = self.class(class, depth);
        crate::names::type_text(&name, &arguments)
    }

    fn metadata(self, module: ModuleId) -> Option<Metadata> {
        let mut import = ptr::null_mut();
        // SAFETY: GetModuleMetaData, for reading.
        let result = unsafe {
            call!(
                self.0,
                21,
                (ModuleId, u32, *const Guid, *mut *mut c_void),
                module,
                0,
                &raw const METADATA_IMPORT,
                &raw mut import
            )
        };
        (result == S_OK && !import.is_null()).then_some(Metadata(import))
    }

    /// Calls `each` with the function and the return address of every managed frame of the calling thread, leaf first, until that returns
    /// false. Not within a signal handler.
    pub(crate) fn snapshot(self, mut each: impl FnMut(FunctionId, u64) -> bool) {
        const STOP: Hresult = 1;
        unsafe extern "system" fn frame<F: FnMut(FunctionId, u64) -> bool>(
            function: FunctionId,
            address: usize,
            _info: usize,
            _size: u32,
            _context: *const u8,
            each: *mut F,
        ) -> Hresult {
            // SAFETY: what `snapshot` passed, whose frame is below this one.
            let each = unsafe { each.as_mut() }.filter(|_| function != 0 && address > 4096);
            if each.is_none_or(|each| each(function, address as u64)) { S_OK } else { STOP }
        }
        fn callback_for<F: FnMut(FunctionId, u64) -> bool>(_: &F) -> *const () {
            frame::<F> as *const ()
        }
        let callback = callback_for(&each);
        // SAFETY: DoStackSnapshot of the calling thread, without its registers; CoreCLR passes the callback its data back.
        unsafe {
            call!(
                self.0,
                36,
                (usize, *const (), u32, *mut c_void, *const u8, u32),
                0,
                callback,
                0,
                (&raw mut each).cast(),
                ptr::null(),
                0
            )
        };
    }

    /// Starts a session whose events come to our callback on the threads that cause them; returns its number.
    pub(crate) fn start_session(self, keywords: u64, level: u32) -> Result<u64, Hresult> {
        #[repr(C)]
        struct Provider {
            name: *const u16,
            keywords: u64,
            level: u32,
            filter: *const u16,
        }
        let name: Vec<u16> = "Microsoft-Windows-DotNETRuntime\0".encode_utf16().collect();
        let provider = Provider { name: name.as_ptr(), keywords, level, filter: ptr::null() };
        let mut session = 0_u64;
        // SAFETY: EventPipeStartSession with one provider, without a rundown.
        let result = unsafe {
            call!(self.0, 101, (u32, *const Provider, i32, *mut u64), 1, &raw const provider, 0, &raw mut session)
        };
        if result < 0 { Err(result) } else { Ok(session) }
    }

    /// Ends a session.
    pub(crate) fn stop_session(self, session: u64) {
        // SAFETY: EventPipeStopSession.
        unsafe { call!(self.0, 103, (u64), session) };
    }
}

/// IMetaDataImport of a module.
struct Metadata(*mut c_void);

impl Drop for Metadata {
    fn drop(&mut self) {
        // SAFETY: Release of the reference that GetModuleMetaData gave.
        unsafe { call!(self.0, 2, ()) };
    }
}

impl Metadata {
    /// A method's name and the type that it is in.
    fn method(&self, token: u32) -> Option<(String, u32)> {
        let (mut owner, mut length) = (0_u32, 0_u32);
        let mut name = [0_u16; 512];
        let mut rest = [0_u32; 4];
        let [attributes, size, address, flags] = &mut rest;
        let mut signature = 0_usize;
        // SAFETY: GetMethodProps.
        let result = unsafe {
            call!(
                self.0,
                30,
                (u32, *mut u32, *mut u16, u32, *mut u32, *mut u32, *mut usize, *mut u32, *mut u32, *mut u32),
                token,
                &raw mut owner,
                name.as_mut_ptr(),
                512,
                &raw mut length,
                attributes,
                &raw mut signature,
                size,
                address,
                flags
            )
        };
        (result >= 0).then(|| (text(&name, length), owner))
    }

    /// A type's name, with the types that it is nested in.
    fn class(&self, token: u32, depth: u32) -> String {
        const NESTED: u32 = 2;
        let (mut length, mut flags, mut extends) = (0_u32, 0_u32, 0_u32);
        let mut name = [0_u16; 512];
        // SAFETY: GetTypeDefProps.
        unsafe {
            call!(
                self.0,
                12,
                (u32, *mut u16, u32, *mut u32, *mut u32, *mut u32),
                token,
                name.as_mut_ptr(),
                512,
                &raw mut length,
                &raw mut flags,
                &raw mut extends
            )
        };
        let name = text(&name, length);
        let mut outer = 0_u32;
        // SAFETY: GetNestedClassProps.
        let is_nested = flags & 7 >= NESTED
            && depth < MAX_DEPTH
            && unsafe { call!(self.0, 62, (u32, *mut u32), token, &raw mut outer) } >= 0
            && outer != 0;
        if is_nested { self.class(outer, depth + 1) + "+" + &name } else { name }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::sync::Mutex;

    /// The masks that CoreCLR was told.
    pub(crate) static TOLD: Mutex<Vec<u32>> = Mutex::new(Vec::new());

    extern "system" fn refuse() -> Hresult {
        i32::MIN
    }

    extern "system" fn take_mask(_this: *const c_void, low: u32, _high: u32) -> Hresult {
        TOLD.lock().unwrap().push(low);
        S_OK
    }

    #[repr(transparent)]
    struct Functions([*const (); 104]);

    // SAFETY: addresses of functions.
    unsafe impl Sync for Functions {}

    static FUNCTIONS: Functions = {
        let mut functions = [refuse as *const (); 104];
        functions[82] = take_mask as *const ();
        Functions(functions)
    };

    /// Attaches to a CoreCLR that refuses all but the mask.
    pub(crate) fn attach() {
        static OBJECT: AtomicPtr<Functions> = AtomicPtr::new((&raw const FUNCTIONS).cast_mut());
        // SAFETY: a pointer to a table of functions, none of which looks at more than its arguments.
        assert_eq!(unsafe { initialize(OBJECT.as_ptr().cast()) }, S_OK);
    }
}
