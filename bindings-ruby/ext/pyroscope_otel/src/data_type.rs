//! Types of objects of ours that the collector marks.

use std::ffi::c_void;

use rb_sys::{VALUE, rb_data_type_t};

/// Types that the collector calls by; they stay.
pub(crate) struct DataType(pub(crate) rb_data_type_t);

// SAFETY: nothing in it changes.
unsafe impl Sync for DataType {}

pub(crate) const fn data_type(
    name: &'static std::ffi::CStr,
    mark: unsafe extern "C" fn(*mut c_void),
    flags: VALUE,
) -> DataType {
    // SAFETY: a struct of pointers and numbers, for which all zero means "none".
    let mut data_type: rb_data_type_t = unsafe { std::mem::zeroed() };
    data_type.wrap_struct_name = name.as_ptr();
    data_type.function.dmark = Some(mark);
    data_type.flags = flags;
    DataType(data_type)
}
