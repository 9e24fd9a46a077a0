/* What the packages' libraries are linked with in place of libgcc_s.so.1: its name and the names that Rust's library asks
 * it for. It is never loaded. zig would link LLVM's unwinder into them, and glibc's forced unwind (pthread_exit, by which
 * CPython up to 3.13 ends a daemon thread) hands the context of libgcc's to whatever unwinder a library has. */
#define NAMED(name) void name(void) {}
NAMED(_Unwind_Backtrace)
NAMED(_Unwind_DeleteException)
NAMED(_Unwind_FindEnclosingFunction)
NAMED(_Unwind_ForcedUnwind)
NAMED(_Unwind_GetCFA)
NAMED(_Unwind_GetDataRelBase)
NAMED(_Unwind_GetGR)
NAMED(_Unwind_GetIP)
NAMED(_Unwind_GetIPInfo)
NAMED(_Unwind_GetLanguageSpecificData)
NAMED(_Unwind_GetRegionStart)
NAMED(_Unwind_GetTextRelBase)
NAMED(_Unwind_RaiseException)
NAMED(_Unwind_Resume)
NAMED(_Unwind_Resume_or_Rethrow)
NAMED(_Unwind_SetGR)
NAMED(_Unwind_SetIP)
