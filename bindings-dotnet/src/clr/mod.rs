//! Questions to CoreCLR: ICorProfilerInfo12 and IMetaDataImport, as far as they are needed.
//!
//! The indices and signatures are those of corprof.idl and cor.h, which only ever grow. A managed thread may not ask for
//! names or code (0x80131363); the profiler's own threads are native, and may, and so may a callback on any thread.
//!
//! Code that can go away (dynamic methods, collectible assemblies) is asked for where it is in use alone, as
//! [`code_map`](crate::symbols::code_map) says: a moment later its descriptions may be freed, and CoreCLR does not check. None of
//! our locks is held by a thread that runs managed code while it waits here, as CoreCLR may wait for a garbage collection.

pub(crate) mod code;
pub(crate) mod com;
mod declarations;
pub(crate) mod info;
mod metadata;
pub(crate) mod method_names;
