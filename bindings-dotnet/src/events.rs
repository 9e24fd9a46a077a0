pub(crate) fn delivered(_id: u32, _version: u32, _payload: &[u8]) {}
