// A CLR profiler as OpenTelemetry's auto-instrumentation or an APM is one: by the environment, in the slot that there is for
// one. It counts the methods that are compiled, and leaves the number in the file that MAIN_PROFILER_COUNT names.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t a;
    uint16_t b, c;
    uint8_t d[8];
} Guid;

// Functions of ICorProfilerCallback2 and ICorProfilerInfo by their place, as corprof.idl has them.
enum { INITIALIZE = 3, SHUTDOWN = 4, COMPILATION_STARTED = 23, CALLBACKS = 128, SET_EVENT_MASK = 16 };
enum { OK = 0, NO_INTERFACE = (int)0x80004002, COMPILATIONS = 0x20 };

static const Guid INFO = {0x28B5557D, 0x3F3F, 0x48B4, {0x90, 0xB2, 0x5F, 0x9E, 0xEA, 0x2F, 0x6C, 0x48}};
static const Guid OURS[] = {
    {0, 0, 0, {0xC0, 0, 0, 0, 0, 0, 0, 0x46}}, // IUnknown
    {1, 0, 0, {0xC0, 0, 0, 0, 0, 0, 0, 0x46}}, // IClassFactory
    {0x176FBED1, 0xA55C, 0x4796, {0x98, 0xCA, 0xA9, 0xDA, 0x0E, 0xF8, 0x83, 0xE7}},
    {0x8A8CC829, 0xCCF2, 0x49FE, {0xBB, 0xAE, 0x0F, 0x02, 0x22, 0x28, 0x07, 0x1A}},
};

static int compiled;
static void *callbacks[CALLBACKS], *factory[5];
static void **profiler = callbacks, **class_factory = factory;

static int nothing(void) { return OK; }

static int query(void *self, const Guid *interface, void **out) {
    for (size_t i = 0; i < sizeof OURS / sizeof *OURS; i++) {
        if (memcmp(interface, &OURS[i], sizeof(Guid)) == 0) {
            *out = self;
            return OK;
        }
    }
    *out = NULL;
    return NO_INTERFACE;
}

static int initialize(void *self, void *unknown) {
    void **info;
    (void)self;
    if (((int (*)(void *, const Guid *, void ***))(*(void ***)unknown)[0])(unknown, &INFO, &info) != OK) return NO_INTERFACE;
    return ((int (*)(void *, uint32_t))((void **)*info)[SET_EVENT_MASK])(info, COMPILATIONS);
}

static int compilation_started(void) {
    __atomic_add_fetch(&compiled, 1, __ATOMIC_RELAXED);
    return OK;
}

static int shut_down(void) {
    FILE *file = fopen(getenv("MAIN_PROFILER_COUNT"), "w");
    fprintf(file, "%d", compiled);
    return fclose(file);
}

static int create(void *self, void *outer, const Guid *interface, void **out) {
    (void)self;
    (void)outer;
    return query(&profiler, interface, out);
}

int DllGetClassObject(const Guid *class, const Guid *interface, void **out) {
    (void)class;
    for (int i = 0; i < CALLBACKS; i++) callbacks[i] = (void *)nothing;
    callbacks[0] = (void *)query;
    callbacks[INITIALIZE] = (void *)initialize;
    callbacks[SHUTDOWN] = (void *)shut_down;
    callbacks[COMPILATION_STARTED] = (void *)compilation_started;
    factory[0] = (void *)query;
    factory[1] = factory[2] = factory[4] = (void *)nothing;
    factory[3] = (void *)create;
    return query(&class_factory, interface, out);
}
