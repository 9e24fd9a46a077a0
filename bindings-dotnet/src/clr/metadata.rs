//! Names of methods and types in a module's metadata, by IMetaDataImport.

use std::ffi::c_void;
use std::ptr;

use crate::clr::com::{Guid, S_OK, call, text};
use crate::clr::info::Clr;

static METADATA_IMPORT: Guid = Guid(0x7DAC_8207, 0xD3AE, 0x4C75, [0x9B, 0x67, 0x92, 0x80, 0x1A, 0x49, 0x7D, 0x44]);

/// Levels of types within types that are looked at.
pub(super) const MAX_DEPTH: u32 = 8;

pub(super) type ModuleId = usize;

/// IMetaDataImport of a module.
pub(super) struct Metadata(*mut c_void);

impl Clr {
    /// What is in a module.
    pub(super) fn metadata(self, module: ModuleId) -> Option<Metadata> {
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
}

impl Drop for Metadata {
    fn drop(&mut self) {
        // SAFETY: Release of the reference that GetModuleMetaData gave.
        unsafe { call!(self.0, 2, ()) };
    }
}

impl Metadata {
    /// A method's name and the type that it is in.
    pub(super) fn method(&self, token: u32) -> Option<(String, u32)> {
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
    pub(super) fn class(&self, token: u32, depth: u32) -> String {
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
