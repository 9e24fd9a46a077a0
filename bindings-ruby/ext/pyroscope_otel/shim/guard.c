// What cannot be written in Rust: sigsetjmp, which returns twice, and thread-local words that a signal handler may read.
//
// A walk over frames that another thread or the interpreter itself is just changing may meet an address that is not
// there. While `guard` is set, a SIGSEGV or SIGBUS on this thread jumps back to where the walk began, and every other
// fault goes to the handler that was there before, which is Ruby's. rb_profile_frames only reads, so nothing is left half
// done. The jump never crosses a frame of Rust: setter and jumper are both in this file.
//
// libc functions that run in a signal handler: __sigsetjmp, siglongjmp (mask not saved: both only move registers).

#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

// As ruby.h has them, which would need the folders of headers of the Ruby in use.
typedef uintptr_t VALUE;
int rb_profile_frames(int start, int limit, VALUE *frames, int *lines);
VALUE rb_thread_current(void);
VALUE rb_fiber_current(void);
VALUE rb_current_receiver(void);
uintptr_t rb_frame_this_func(void);

// Where a fault of this thread goes to; NULL: not to us.
static __thread sigjmp_buf *volatile guard;
// What the binding knows of this thread, see span/record.rs.
static __thread void *volatile slot;

static struct sigaction previous_segv, previous_bus;

void *pyroscope_slot(void) { return slot; }

void pyroscope_set_slot(void *new_slot) { slot = new_slot; }

// Returns what `read` is, or `failed` if it met memory that is not there. A macro, as the jump goes back into the function that
// called sigsetjmp. In the handler it may interrupt one that runs, whose guard comes back afterwards.
#define RETURN_GUARDED(type, read, failed)         \
    do {                                           \
        sigjmp_buf here;                           \
        sigjmp_buf *outer = guard;                 \
        if (sigsetjmp(here, 0) != 0) {             \
            guard = outer;                         \
            return failed;                         \
        }                                          \
        guard = &here;                             \
        atomic_signal_fence(memory_order_seq_cst); \
        type result = (read);                      \
        atomic_signal_fence(memory_order_seq_cst); \
        guard = outer;                             \
        return result;                             \
    } while (0)

// As rb_profile_frames(0, ...); -1: it met memory that is not there.
int pyroscope_profile_frames(int limit, VALUE *frames, int *lines) {
    RETURN_GUARDED(int, rb_profile_frames(0, limit, frames, lines), -1);
}

// The flags of what may be an object; 0: there is none.
VALUE pyroscope_flags(VALUE object) { RETURN_GUARDED(VALUE, *(volatile VALUE *)object, 0); }

// The Ruby thread that runs here; 0: none does.
VALUE pyroscope_thread_current(void) { RETURN_GUARDED(VALUE, rb_thread_current(), 0); }

// The fiber that runs here; 0: none does. Called where the thread has switched fibers, so each of them has its object already.
VALUE pyroscope_fiber_current(void) { RETURN_GUARDED(VALUE, rb_fiber_current(), 0); }

// The method that runs here, as Ruby numbers names; 0: none does.
uintptr_t pyroscope_frame_method(void) { RETURN_GUARDED(uintptr_t, rb_frame_this_func(), 0); }

// Whether the receiver of that method is an IO, or a data object of this type, which stands in this word of such objects.
enum { T_FILE = 0x0b, T_DATA = 0x0c, TYPE_MASK = 0x1f };
static VALUE kind_of(const volatile VALUE *object) {
    // Numbers, symbols, nil, true and false are no addresses.
    int is_address = ((VALUE)object & 7) == 0 && (VALUE)object > 0x1000;
    return is_address ? object[0] & TYPE_MASK : 0;
}
static int has_type(const volatile VALUE *object, int word, VALUE type) {
    return kind_of(object) == T_DATA && object[word] == type;
}
int pyroscope_receiver_has_type(int word, VALUE type) {
    RETURN_GUARDED(int, has_type((VALUE *)rb_current_receiver(), word, type), 0);
}
int pyroscope_receiver_is_io(void) { RETURN_GUARDED(int, kind_of((VALUE *)rb_current_receiver()) == T_FILE, 0); }

static void on_fault(int signal_number, siginfo_t *info, void *context) {
    sigjmp_buf *to = guard;
    if (to) {
        guard = NULL;
        siglongjmp(*to, 1);
    }
    struct sigaction *previous = signal_number == SIGBUS ? &previous_bus : &previous_segv;
    if (previous->sa_flags & SA_SIGINFO) {
        previous->sa_sigaction(signal_number, info, context);
    } else if (previous->sa_handler == SIG_DFL || previous->sa_handler == SIG_IGN) {
        // The instruction faults again, and the process ends as it would have without us.
        signal(signal_number, SIG_DFL);
    } else {
        previous->sa_handler(signal_number);
    }
}

// SA_NODEFER: Ruby's handler leaves by a jump when a stack overflows, and so does ours.
static void guard_signal(int signal_number, struct sigaction *previous) {
    struct sigaction ours = {0};
    sigemptyset(&ours.sa_mask);
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(signal_number, &ours, previous);
}

// Installs the guard, once a process. It stays, as signals do that come late.
void pyroscope_install_guard(void) {
    static int installed;
    if (!installed) {
        installed = 1;
        guard_signal(SIGSEGV, &previous_segv);
        guard_signal(SIGBUS, &previous_bus);
    }
}

// Whether faults still come to us.
int pyroscope_is_guarded(void) {
    struct sigaction segv, bus;
    return sigaction(SIGSEGV, NULL, &segv) == 0 && sigaction(SIGBUS, NULL, &bus) == 0 &&
           (segv.sa_flags & SA_SIGINFO) && segv.sa_sigaction == on_fault &&
           (bus.sa_flags & SA_SIGINFO) && bus.sa_sigaction == on_fault;
}
