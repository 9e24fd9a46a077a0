//! Questions to CoreCLR of code: what was compiled, and where it is.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;

use crate::clr::com::{S_OK, call};
use crate::clr::info::{Clr, FunctionId};

/// As many of the list's functions are taken at a time.
const FUNCTIONS: u32 = 1_024;

/// Ranges of code that are one compiled method.
pub(crate) type Body = Vec<Range<u64>>;

impl Clr {
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
}
