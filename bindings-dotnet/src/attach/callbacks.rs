//! The object that CoreCLR loads as a profiler: a table of 98 functions, the layout of ICorProfilerCallback11.
//!
//! It is notification-only: the main profiler's slot stays free, for OpenTelemetry's auto-instrumentation or another
//! APM. It changes no code and asks for no event that slows the program; the few callbacks that it needs are passed on,
//! all others answer S_OK. There is one object, it is static and never goes away.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::clr::com::{Guid, Hresult, S_OK, call};
use crate::clr::info;
use crate::events::samples;
use crate::stack::own_stack;
use crate::symbols::code_map;

const E_NOINTERFACE: Hresult = 0x8000_4002_u32.cast_signed();
const E_POINTER: Hresult = 0x8000_4003_u32.cast_signed();
const CLASS_E_CLASSNOTAVAILABLE: Hresult = 0x8004_0111_u32.cast_signed();

/// Our class, named in the request to attach.
pub(crate) const CLASS: Guid = Guid(0x9a1d_31cb, 0x52c4, 0x4c0e, [0x8d, 0x0b, 0x3f, 0x61, 0x6e, 0xb2, 0x27, 0x5a]);
const UNKNOWN: Guid = Guid::com(0);
static CLASS_FACTORY: Guid = Guid::com(1);
/// ICorProfilerInfo12, of .NET 5 and later.
static INFO_12: Guid = Guid(0x27B2_4CCD, 0x1CB1, 0x47C5, [0x96, 0xEE, 0x98, 0x19, 0x0D, 0xC3, 0x09, 0x59]);
/// ICorProfilerCallback to ICorProfilerCallback11.
const CALLBACKS: [Guid; 11] = [
    Guid(0x176F_BED1, 0xA55C, 0x4796, [0x98, 0xCA, 0xA9, 0xDA, 0x0E, 0xF8, 0x83, 0xE7]),
    Guid(0x8A8C_C829, 0xCCF2, 0x49FE, [0xBB, 0xAE, 0x0F, 0x02, 0x22, 0x28, 0x07, 0x1A]),
    Guid(0x4FD2_ED52, 0x7731, 0x4B8D, [0x94, 0x69, 0x03, 0xD2, 0xCC, 0x30, 0x86, 0xC5]),
    Guid(0x7B63_B2E3, 0x107D, 0x4D48, [0xB2, 0xF6, 0xF6, 0x1E, 0x22, 0x94, 0x70, 0xD2]),
    Guid(0x8DFB_A405, 0x8C9F, 0x45F8, [0xBF, 0xFA, 0x83, 0xB1, 0x4C, 0xEF, 0x78, 0xB5]),
    Guid(0xFC13_DF4B, 0x4448, 0x4F4F, [0x95, 0x0C, 0xBA, 0x8D, 0x19, 0xD0, 0x0C, 0x36]),
    Guid(0xF76A_2DBA, 0x1D52, 0x4539, [0x86, 0x6C, 0x2A, 0xA5, 0x18, 0xF9, 0xEF, 0xC3]),
    Guid(0x5BED_9B15, 0xC079, 0x4D47, [0xBF, 0xE2, 0x21, 0x5A, 0x14, 0x0C, 0x07, 0xE0]),
    Guid(0x2758_3EC3, 0xC8F5, 0x482F, [0x80, 0x52, 0x19, 0x4B, 0x8C, 0xE4, 0x70, 0x5A]),
    Guid(0xCEC5_B60E, 0xC69C, 0x495F, [0x87, 0xF6, 0x84, 0xD2, 0x8E, 0xE1, 0x6F, 0xFB]),
    Guid(0x4235_0846, 0xAAED, 0x47F7, [0xB1, 0x28, 0xFD, 0x0C, 0x98, 0x88, 0x1C, 0xDE]),
];

/// An object is a pointer to its table of functions.
#[repr(C)]
struct Object<const N: usize> {
    functions: *const [*const (); N],
}

// SAFETY: points to a static table, which never changes.
unsafe impl<const N: usize> Sync for Object<N> {}

#[repr(transparent)]
struct Table<const N: usize>([*const (); N]);

// SAFETY: addresses of functions.
unsafe impl<const N: usize> Sync for Table<N> {}

static CALLBACK_TABLE: Table<98> = {
    let mut table = [answer_ok as *const (); 98];
    table[0] = query_callback as *const ();
    table[1] = count as *const ();
    table[2] = count as *const ();
    table[23] = begun as *const ();
    table[24] = compiled as *const ();
    table[31] = thread_assigned as *const ();
    table[80] = initialize_for_attach as *const ();
    table[92] = begun as *const ();
    table[93] = compiled as *const ();
    table[95] = event_delivered as *const ();
    table[97] = load_as_notification_only as *const ();
    Table(table)
};
static CALLBACK: Object<98> = Object { functions: &raw const CALLBACK_TABLE.0 };

static FACTORY_TABLE: Table<5> = Table([
    query_factory as *const (),
    count as *const (),
    count as *const (),
    create_instance as *const (),
    answer_ok as *const (),
]);
static FACTORY: Object<5> = Object { functions: &raw const FACTORY_TABLE.0 };

/// Asked by CoreCLR, which loads this library by its path when a profiler is attached.
///
/// # Safety
/// As COM says: the GUIDs are valid, `object` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn DllGetClassObject(
    class: *const Guid,
    interface: *const Guid,
    object: *mut *const c_void,
) -> Hresult {
    // SAFETY: null or valid, as the caller promises.
    if unsafe { class.as_ref() } != Some(&CLASS) {
        return CLASS_E_CLASSNOTAVAILABLE;
    }
    // SAFETY: as the caller promises.
    unsafe { query_factory(ptr::null(), interface, object) }
}

/// The answer of every callback that we do not need. A caller cleans up its arguments itself in this ABI.
extern "system" fn answer_ok() -> Hresult {
    S_OK
}

/// AddRef and Release of objects that stay.
extern "system" fn count() -> u32 {
    1
}

unsafe extern "system" fn query_factory(
    _this: *const c_void,
    interface: *const Guid,
    object: *mut *const c_void,
) -> Hresult {
    // SAFETY: as COM says.
    unsafe { give(interface, &[CLASS_FACTORY], (&raw const FACTORY).cast(), object) }
}

unsafe extern "system" fn create_instance(
    this: *const c_void,
    _outer: *const c_void,
    interface: *const Guid,
    object: *mut *const c_void,
) -> Hresult {
    // SAFETY: as COM says.
    unsafe { query_callback(this, interface, object) }
}

unsafe extern "system" fn query_callback(
    _this: *const c_void,
    interface: *const Guid,
    object: *mut *const c_void,
) -> Hresult {
    // SAFETY: as COM says.
    unsafe { give(interface, &CALLBACKS, (&raw const CALLBACK).cast(), object) }
}

/// QueryInterface.
///
/// # Safety
/// `interface` and `object` are null or valid.
unsafe fn give(interface: *const Guid, known: &[Guid], it: *const c_void, object: *mut *const c_void) -> Hresult {
    // SAFETY: the caller's promise.
    let (Some(interface), Some(object)) = (unsafe { interface.as_ref() }, unsafe { object.as_mut() }) else {
        return E_POINTER;
    };
    let is_known = *interface == UNKNOWN || known.contains(interface);
    *object = if is_known { it } else { ptr::null() };
    if is_known { S_OK } else { E_NOINTERFACE }
}

unsafe extern "system" fn load_as_notification_only(_this: *const c_void, answer: *mut i32) -> Hresult {
    // SAFETY: as CoreCLR says; an output parameter.
    if let Some(answer) = unsafe { answer.as_mut() } {
        *answer = 1;
    }
    S_OK
}

unsafe extern "system" fn initialize_for_attach(
    _this: *const c_void,
    unknown: *mut c_void,
    _data: *const c_void,
    _size: u32,
) -> Hresult {
    let mut info = ptr::null_mut();
    // SAFETY: CoreCLR passes an IUnknown, of which function 0 is QueryInterface.
    let result = unsafe { call!(unknown, 0, (*const Guid, *mut *mut c_void), &raw const INFO_12, &raw mut info) };
    if result < 0 {
        return result;
    }
    // SAFETY: it is the interface that was asked for.
    unsafe { info::initialize(info) }
}

/// JITCompilationStarted, and DynamicMethodJITCompilationStarted.
extern "system" fn begun(_this: *const c_void, function: usize) -> Hresult {
    quietly(|| code_map::begun(function));
    S_OK
}

/// JITCompilationFinished, and DynamicMethodJITCompilationFinished.
extern "system" fn compiled(_this: *const c_void, function: usize, result: Hresult, _may_block: i32) -> Hresult {
    if result >= 0
        && let Some(clr) = info::attached()
    {
        quietly(|| code_map::compiled(clr, function));
    }
    S_OK
}

/// ThreadAssignedToOSThread, which the runtime calls on a thread of its own as its first deed: it is sampled from here on,
/// where a sweep of the list of threads would find it up to 100 ms later, or no more.
extern "system" fn thread_assigned(_this: *const c_void, _managed: usize, _os: u32) -> Hresult {
    quietly(|| {
        own_stack::note();
        spanprof_core::thread_started();
    });
    S_OK
}

/// A callback of ours that panics has done nothing; the runtime goes on.
fn quietly(callback: impl FnOnce()) {
    drop(catch_unwind(AssertUnwindSafe(callback)));
}

unsafe extern "system" fn event_delivered(
    _this: *const c_void,
    _provider: usize,
    id: u32,
    version: u32,
    _metadata_size: u32,
    _metadata: *const u8,
    size: u32,
    data: *const u8,
    _activity: *const Guid,
    _related: *const Guid,
    _thread: usize,
    _frame_count: u32,
    _frames: *const usize,
) -> Hresult {
    let payload: &[u8] = if data.is_null() {
        &[]
    } else {
        // SAFETY: as CoreCLR says, for the length of the callback.
        unsafe { std::slice::from_raw_parts(data, size as usize) }
    };
    quietly(|| samples::delivered(id, version, payload));
    S_OK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(function: *const (), interface: Guid) -> (Hresult, *const c_void) {
        let mut object = ptr::null();
        // SAFETY: the first function of either table has this type.
        let query: unsafe extern "system" fn(*const c_void, *const Guid, *mut *const c_void) -> Hresult =
            unsafe { std::mem::transmute(function) };
        // SAFETY: valid arguments.
        let result = unsafe { query(ptr::null(), &raw const interface, &raw mut object) };
        (result, object)
    }

    #[test]
    fn the_class_is_found_by_its_guid_and_gives_every_callback_interface() {
        let mut object = ptr::null();
        let mut get = |class: Guid| {
            // SAFETY: valid GUIDs and a place for the object.
            unsafe { DllGetClassObject(&raw const class, &raw const CLASS_FACTORY, &raw mut object) }
        };
        assert_eq!(get(UNKNOWN), CLASS_E_CLASSNOTAVAILABLE);
        assert_eq!(get(CLASS), S_OK);
        assert_eq!(object, (&raw const FACTORY).cast());
        for interface in CALLBACKS.into_iter().chain([UNKNOWN]) {
            assert_eq!(query(CALLBACK_TABLE.0[0], interface), (S_OK, (&raw const CALLBACK).cast()));
        }
        assert_eq!(query(CALLBACK_TABLE.0[0], CLASS_FACTORY), (E_NOINTERFACE, ptr::null()));
    }
}
