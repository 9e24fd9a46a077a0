//! Waiting without the GVL.

use std::ffi::c_void;
use std::ptr;

use magnus::Error;
use rb_sys::VALUE;

use crate::errors::quietly;
use crate::value::NIL;

/// What `body` returns, while other Ruby threads run. It cannot be interrupted: callers bound its time. What came for this
/// thread before is an error, and nothing was done; what comes meanwhile waits until Ruby looks for it next.
pub(crate) fn without_gvl<T: Default>(body: impl FnOnce() -> T) -> Result<T, Error> {
    struct Call<T, F> {
        body: Option<F>,
        result: T,
    }
    unsafe extern "C" fn call<T: Default, F: FnOnce() -> T>(data: *mut c_void) -> *mut c_void {
        // SAFETY: the address of the `Call` below, which waits for this.
        let call = unsafe { &mut *data.cast::<Call<T, F>>() };
        if let Some(body) = call.body.take() {
            call.result = quietly(body);
        }
        data
    }
    fn function<T: Default, F: FnOnce() -> T>(_: &Call<T, F>) -> unsafe extern "C" fn(*mut c_void) -> *mut c_void {
        call::<T, F>
    }
    let mut request = Call { body: Some(body), result: T::default() };
    let function = function(&request);
    let data = &raw mut request;
    // SAFETY: `function` reads `request`, which outlives it, and calls nothing of Ruby's. This call raises nothing: it returns
    // null where an interrupt waits.
    while unsafe { rb_sys::rb_thread_call_without_gvl2(Some(function), data.cast(), None, ptr::null_mut()) }.is_null() {
        // SAFETY: what it raises is caught.
        let _: VALUE = magnus::rb_sys::protect(|| unsafe {
            rb_sys::rb_thread_check_ints();
            NIL
        })?;
    }
    Ok(request.result)
}
