//! Reading Ruby's objects by its C API, where magnus would cost too much: in `Context.attach` and in hooks.
//!
//! Nothing here calls a method of the program, raises, or makes an object.

use std::ffi::c_int;
use std::slice;

use magnus::Value;
use magnus::rb_sys::AsRawValue;
use rb_sys::macros::{RARRAY_CONST_PTR, RARRAY_LEN, RB_TYPE_P, RSTRING_LEN, RSTRING_PTR};
use rb_sys::{ID, VALUE, ruby_value_type as Type, st_retval};

/// `nil`.
pub(crate) const NIL: VALUE = rb_sys::Qnil as VALUE;

/// `true`.
pub(crate) const TRUE: VALUE = rb_sys::Qtrue as VALUE;
/// `false`.
pub(crate) const FALSE: VALUE = rb_sys::Qfalse as VALUE;

/// Witness that the calling thread holds the GVL, as all that is called by Ruby does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gvl(());

impl Gvl {
    /// # Safety
    /// The calling thread holds the GVL for as long as the witness is used.
    #[inline]
    pub(crate) unsafe fn held() -> Self {
        Self(())
    }

    #[inline]
    fn is(self, value: VALUE, of: Type) -> bool {
        // SAFETY: `value` came from Ruby, and the GVL is held.
        unsafe { RB_TYPE_P(value, of) }
    }

    /// An instance variable; nil if there is none, or it is no ordinary object.
    #[inline]
    pub(crate) fn ivar(self, object: VALUE, name: ID) -> VALUE {
        if self.is(object, Type::RUBY_T_OBJECT) {
            // SAFETY: an object, and reading a variable neither raises nor allocates.
            unsafe { rb_sys::rb_attr_get(object, name) }
        } else {
            NIL
        }
    }

    /// Sets an instance variable of an ordinary object; false if it is none, or frozen.
    #[inline]
    pub(crate) fn set_ivar(self, object: VALUE, name: ID, value: VALUE) -> bool {
        // SAFETY: `object` came from Ruby, and the GVL is held.
        if !self.is(object, Type::RUBY_T_OBJECT) || unsafe { rb_sys::rb_obj_frozen_p(object) } != FALSE {
            return false;
        }
        // SAFETY: an object that is not frozen, so nothing is raised.
        unsafe { rb_sys::rb_ivar_set(object, name, value) };
        true
    }

    /// As [`ivar`](Self::ivar), of a Fiber.
    #[inline]
    pub(crate) fn fiber_ivar(self, name: ID) -> VALUE {
        // SAFETY: the GVL is held by a Ruby thread, which has a current fiber.
        let fiber = unsafe { rb_sys::rb_fiber_current() };
        // SAFETY: as in `ivar`.
        unsafe { rb_sys::rb_attr_get(fiber, name) }
    }

    /// The fiber-local `Thread.current[name]`.
    #[inline]
    pub(crate) fn fiber_local(self, name: ID) -> VALUE {
        // SAFETY: the GVL is held by a Ruby thread.
        let thread = unsafe { rb_sys::rb_thread_current() };
        // SAFETY: as above.
        unsafe { rb_sys::rb_thread_local_aref(thread, name) }
    }

    /// The bytes of a String, else none. Valid until Ruby runs again.
    #[inline]
    pub(crate) fn bytes<'a>(self, value: VALUE) -> &'a [u8] {
        if !self.is(value, Type::RUBY_T_STRING) {
            return &[];
        }
        // SAFETY: a String, and the GVL is held.
        let length = unsafe { RSTRING_LEN(value) };
        // SAFETY: as above.
        let start = unsafe { RSTRING_PTR(value) };
        // SAFETY: Ruby says that so many bytes are there; callers copy them before Ruby runs again.
        unsafe { slice::from_raw_parts(start.cast(), usize::try_from(length).unwrap_or(0)) }
    }

    /// The last element of an Array; nil if it is none or empty.
    #[inline]
    pub(crate) fn last(self, value: VALUE) -> VALUE {
        if !self.is(value, Type::RUBY_T_ARRAY) {
            return NIL;
        }
        // SAFETY: an Array, and the GVL is held.
        let length = usize::try_from(unsafe { RARRAY_LEN(value) }).unwrap_or(0);
        let Some(at) = length.checked_sub(1) else { return NIL };
        // SAFETY: as above.
        let start = unsafe { RARRAY_CONST_PTR(value) };
        // SAFETY: so many elements are there.
        let last = unsafe { start.add(at) };
        // SAFETY: as above.
        unsafe { last.read() }
    }

    /// The value of a Hash for `key`, compared by identity where there are few; nil if it is none or has none.
    #[inline]
    pub(crate) fn entry(self, hash: VALUE, key: VALUE) -> VALUE {
        const FEW: rb_sys::size_t = 8;
        if !self.is(hash, Type::RUBY_T_HASH) {
            return NIL;
        }
        // SAFETY: a Hash, and the GVL is held.
        match unsafe { rb_sys::rb_hash_size_num(hash) } {
            0 => NIL,
            1..=FEW => {
                let mut search = Search { key, found: NIL };
                let search = &raw mut search;
                // SAFETY: the callback neither changes the Hash nor raises, and `search` outlives the call.
                unsafe { rb_sys::rb_hash_foreach(hash, Some(compare), search.expose_provenance() as VALUE) };
                // SAFETY: it is the local above.
                unsafe { (*search).found }
            }
            // SAFETY: the key is an object of OpenTelemetry's own class, whose hash is Object's.
            _ => unsafe { rb_sys::rb_hash_lookup2(hash, key, NIL) },
        }
    }
}

struct Search {
    key: VALUE,
    found: VALUE,
}

unsafe extern "C" fn compare(key: VALUE, value: VALUE, search: VALUE) -> c_int {
    #[expect(clippy::cast_possible_truncation, reason = "an address")]
    let search = std::ptr::with_exposed_provenance_mut::<Search>(search as usize);
    // SAFETY: `entry` passed the address of its local.
    let search = unsafe { &mut *search };
    if key == search.key {
        search.found = value;
        return st_retval::ST_STOP as c_int;
    }
    st_retval::ST_CONTINUE as c_int
}

/// The fiber that runs. With the GVL held, as the next.
pub(crate) fn rb_fiber() -> VALUE {
    // SAFETY: called with the GVL held by a Ruby thread.
    unsafe { rb_sys::rb_fiber_current() }
}

/// Where the data of a Fiber lie.
pub(crate) fn data_of(fiber: VALUE) -> usize {
    // SAFETY: a Fiber, which is alive and a data object.
    unsafe { rb_sys::macros::RTYPEDDATA_GET_DATA(fiber) }.addr()
}

/// A number that fits into a word of Ruby's, which all do that are allowed anywhere here.
pub(crate) fn integer(value: Value) -> Option<i64> {
    let word = value.as_raw();
    // A Fixnum has its lowest bit set and the number above it.
    (word & 1 == 1).then_some(word.cast_signed() >> 1)
}

/// The name as Ruby numbers it, for ever.
pub(crate) fn id(name: &str) -> ID {
    // SAFETY: so many bytes are there; Ruby copies them. Called with the GVL, when the extension loads.
    unsafe { rb_sys::rb_intern2(name.as_ptr().cast(), name.len() as std::ffi::c_long) }
}
