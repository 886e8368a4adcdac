/* NVML as far as an agent uses it, for hosts that have none. FAKE_NVML says how it behaves:
 *   fine       two GPUs that answer everything, an XID 79 of the first
 *   bare       two GPUs that answer temperature and memory only, the rest is "not supported"
 *   garbage    two GPUs that say "all ones" where they know nothing
 *   mig        one GPU in MIG mode with two devices
 *   none       a driver without a GPU
 *   no_driver  the library without a loaded driver
 *   lost       GPU 1 falls off the bus at its third look, and is back when NVML is opened a third time
 *   gone       GPU 1 falls off the bus at its third look, and is not listed when NVML is opened again
 *   hang       GPU 1 does not return from its third look
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_LOADED = 9, TIMEOUT = 10, LOST = 15 };

typedef struct { int index; int part; int looks; } Device;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct {
    Device *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} Event;

static Device devices[8] = {{0, 0, 0}, {1, 0, 0}, {2, 0, 0}, {3, 0, 0}, {4, 0, 0}, {5, 0, 0}, {6, 0, 0}, {7, 0, 0}};
static Device parts[2] = {{0, 1, 0}, {0, 2, 0}};
static int opened = 0, waits = 0;

static int mode(const char *name) {
    const char *set = getenv("FAKE_NVML");
    return set != NULL && strcmp(set, name) == 0;
}

/* What happens to a call of this device: most fail with it. */
static int fate(Device *device) {
    if (device->index != 1 || device->looks < 3) return OK;
    if (mode("lost")) return opened < 3 ? LOST : OK;
    if (mode("gone")) return LOST;
    if (mode("hang")) for (;;) sleep(1000);
    return OK;
}

static int number(Device *device, unsigned *value, unsigned normal) {
    int failed = fate(device);
    if (failed) return failed;
    if (mode("bare")) return UNSUPPORTED;
    *value = mode("garbage") ? 0xFFFFFFFFu : normal;
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    opened++;
    return mode("no_driver") ? NOT_LOADED : OK;
}

int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int error) { (void)error; return "an error of the fake NVML"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = mode("eight") ? 8 : mode("none") ? 0 : mode("mig") || (mode("gone") && opened > 1) ? 1 : 2;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    *device = &devices[index];
    return OK;
}

int nvmlDeviceGetUUID(Device *device, char *text, unsigned size) {
    if (device->part) snprintf(text, size, "MIG-part-%d", device->part);
    else snprintf(text, size, "GPU-fake-%d", device->index);
    return OK;
}

int nvmlDeviceGetName(Device *device, char *text, unsigned size) {
    (void)device;
    snprintf(text, size, "NVIDIA Fake 100");
    return OK;
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    int failed = number(device, &rates->gpu, 75);
    return failed ? failed : number(device, &rates->memory, 50);
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    int failed = fate(device);
    if (failed) return failed;
    memory->total = device->part ? 10ull << 30 : 80ull << 30;
    memory->used = device->part ? 1ull << 30 : 20ull << 30;
    memory->free = memory->total - memory->used;
    if (mode("garbage")) memory->used = ~0ull;
    return OK;
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *mw) { return number(device, mw, 412500); }
int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *mw) { return number(device, mw, 700000); }

int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *degrees) {
    int failed = fate(device);
    (void)sensor;
    *degrees = 61;
    return failed;
}

int nvmlDeviceGetClockInfo(Device *device, int clock, unsigned *mhz) {
    return number(device, mhz, clock == 1 ? 1980 : 2619);
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *reasons) {
    unsigned unused;
    device->looks++;
    *reasons = 0x4 | 0x40;
    return number(device, &unused, 0);
}

int nvmlDeviceGetTotalEccErrors(Device *device, int kind, int counter, unsigned long long *count) {
    unsigned value = 0;
    int failed = number(device, &value, kind == 0 ? 7 : 0);
    (void)counter;
    *count = mode("garbage") ? ~0ull : value;
    return failed;
}

int nvmlDeviceGetNvLinkState(Device *device, unsigned link, unsigned *active) {
    if (mode("bare")) return UNSUPPORTED;
    if (link >= 4) return INVALID;
    *active = link != 3;
    return fate(device);
}

int nvmlDeviceGetNvLinkErrorCounter(Device *device, unsigned link, int kind, unsigned long long *count) {
    *count = link == 0 && kind == 0 ? 5 : 0;
    return fate(device);
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    *current = *pending = mode("mig");
    return mode("bare") ? UNSUPPORTED : fate(device);
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) { (void)device; *count = 7; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **part) {
    (void)device;
    if (index != 0 && index != 3) return INVALID;
    *part = &parts[index != 0];
    return OK;
}

int nvmlEventSetCreate(void **set) { *set = &waits; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, void *set) {
    (void)device; (void)types; (void)set;
    return mode("bare") ? UNSUPPORTED : OK;
}

int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    (void)set;
    if (mode("fine") && waits++ == 1) {
        event->device = &devices[0];
        event->type = 0x8;
        event->data = 79;
        return OK;
    }
    usleep(timeout_ms * 1000u);
    return TIMEOUT;
}
