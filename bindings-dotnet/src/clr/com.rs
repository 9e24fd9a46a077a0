//! What COM is made of: GUIDs, results, and calls by a place in an object's table of functions.

/// Calls function `$index` of a COM object.
macro_rules! call {
    ($object:expr, $index:expr, ($($type:ty),*) $(, $argument:expr)*) => {{
        let object: *mut std::ffi::c_void = $object;
        let table: *const *const () = *object.cast();
        let function: unsafe extern "system" fn(*mut std::ffi::c_void, $($type),*) -> crate::clr::com::Hresult =
            std::mem::transmute(*table.add($index));
        function(object, $($argument),*)
    }};
}
pub(crate) use call;

/// An HRESULT; negative = failed.
pub(crate) type Hresult = i32;
pub(crate) const S_OK: Hresult = 0;

/// A GUID as Windows lays it out.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guid(pub(crate) u32, pub(crate) u16, pub(crate) u16, pub(crate) [u8; 8]);

impl Guid {
    /// One of COM's own.
    pub(crate) const fn com(first: u32) -> Self {
        Self(first, 0, 0, [0xC0, 0, 0, 0, 0, 0, 0, 0x46])
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let Self(a, b, c, d) = self;
        [&a.to_le_bytes()[..], &b.to_le_bytes(), &c.to_le_bytes(), &d].concat()
    }
}

/// The text in a buffer that CoreCLR filled, `length` with the zero at its end.
pub(super) fn text(buffer: &[u16], length: u32) -> String {
    let length = (length as usize).saturating_sub(1).min(buffer.len());
    String::from_utf16_lossy(&buffer[..length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_sent_little_endian() {
        let bytes = Guid(0x0102_0304, 0x0506, 0x0708, [9, 10, 11, 12, 13, 14, 15, 16]).to_bytes();
        assert_eq!(bytes, [4, 3, 2, 1, 6, 5, 8, 7, 9, 10, 11, 12, 13, 14, 15, 16]);
    }
}
