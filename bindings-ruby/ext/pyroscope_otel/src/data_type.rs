//! Types of objects of ours that the collector marks or frees.

use std::ffi::{CStr, c_void};

use rb_sys::{VALUE, rb_data_type_t};

/// Types that the collector calls by; they stay.
pub(crate) struct DataType(pub(crate) rb_data_type_t);

// SAFETY: nothing in it changes.
unsafe impl Sync for DataType {}

pub(crate) const fn data_type(name: &'static CStr, mark: unsafe extern "C" fn(*mut c_void), flags: VALUE) -> DataType {
    let mut data_type = plain(name, flags);
    data_type.function.dmark = Some(mark);
    DataType(data_type)
}

/// Of an object that refers to no other one and owns its data.
pub(crate) const fn owning_type(name: &'static CStr, free: unsafe extern "C" fn(*mut c_void)) -> DataType {
    let mut data_type = plain(name, rb_sys::rbimpl_typeddata_flags::RUBY_TYPED_FREE_IMMEDIATELY as VALUE);
    data_type.function.dfree = Some(free);
    DataType(data_type)
}

const fn plain(name: &'static CStr, flags: VALUE) -> rb_data_type_t {
    // SAFETY: a struct of pointers and numbers, for which all zero means "none".
    let mut data_type: rb_data_type_t = unsafe { std::mem::zeroed() };
    data_type.wrap_struct_name = name.as_ptr();
    data_type.flags = flags;
    data_type
}
