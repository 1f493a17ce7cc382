/* Whether CUDA devices can be used: loads libdtr_cuda and asks it, once. */
#include "memory/device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static dtr__cuda found;

const char *dtr__cuda_state_name(dtr__cuda_state state) {
    static const char *const names[] = { [DTR__CUDA_OK] = "ok",
                                         [DTR__CUDA_NOT_BUILT] = "not built",
                                         [DTR__CUDA_NOT_LOADABLE] = "not loadable",
                                         [DTR__CUDA_NO_DRIVER] = "no driver",
                                         [DTR__CUDA_NO_DEVICE] = "no device" };
    return names[state];
}

bool dtr__cuda_has_code(const char *architectures, int major, int minor) {
    const char *at = architectures;
    while (*at != '\0') {
        char *end;
        const long number = strtol(at, &end, 10);
        const int of = (int)(number / 10), than = (int)(number % 10);
        const size_t n = strcspn(at, " "), digits = (size_t)(end - at);
        const bool real = n == digits || strncmp(end, "-real", 5) == 0;
        const bool later = n == digits || strncmp(end, "-virtual", 8) == 0;
        if ((!real && !later) || /* "native", "all", "90a": who asks for these knows his GPUs */
            (real && major == of && minor >= than) ||
            (later && (major > of || (major == of && minor >= than)))) {
            return true;
        }
        at += n + (at[n] == ' ');
    }
    return false;
}

#ifdef DTR_CUDA_TOOLKIT

static void give_up(dtr__cuda_state state, const char *reason) {
    found.state = state;
    found.ops = NULL;
    found.count = 0;
    snprintf(found.reason, sizeof found.reason, "%s", reason != NULL ? reason : "no reason given");
}

/* Beside this library (or program), else wherever the loader looks. */
static void *open_library(void) {
    static const char name[] = "libdtr_cuda.so";
    char path[4096];
    Dl_info self;
    if (dladdr(&once, &self) != 0 && self.dli_fname != NULL) {
        const char *slash = strrchr(self.dli_fname, '/');
        int folder = slash != NULL ? (int)(slash - self.dli_fname) : 0;
        int n = snprintf(path, sizeof path, "%.*s/%s", folder, self.dli_fname, name);
        if (slash != NULL && n < (int)sizeof path && access(path, F_OK) == 0) {
            return dlopen(path, RTLD_NOW | RTLD_LOCAL);
        }
    }
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

static void *library; /* set once, before anybody can ask */

static const dtr__device_ops *load(void) {
    library = open_library();
    if (library == NULL) {
        give_up(DTR__CUDA_NOT_LOADABLE, dlerror());
        return NULL;
    }
    /* It stays: CUDA has threads and exit handlers of its own. */
    const dtr__device_ops *ops = dlsym(library, DTR__DEVICE_SYMBOL);
    if (ops == NULL) {
        give_up(DTR__CUDA_NOT_LOADABLE, dlerror());
        return NULL;
    }
    if (ops->abi != DTR__DEVICE_ABI) {
        give_up(DTR__CUDA_NOT_LOADABLE,
                "libdtr_cuda.so belongs to another version of libdtr; install both together");
        return NULL;
    }
    return ops;
}

/* Every world asks, for the table of its GPUs, and most hosts have none: where the driver's library
 * is missing the CUDA runtime could not open it either, and nothing of CUDA need be loaded. The
 * same goes for a job that hides all devices. */
static bool may_have_devices(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible != NULL && (visible[0] == '\0' || strcmp(visible, "-1") == 0)) {
        give_up(DTR__CUDA_NO_DEVICE, "CUDA_VISIBLE_DEVICES hides all");
        return false;
    }
    if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == NULL) { /* stays, as below */
        give_up(DTR__CUDA_NO_DRIVER, dlerror());
        return false;
    }
    return true;
}

static void probe(void) {
    const dtr__device_ops *ops = may_have_devices() ? load() : NULL;
    if (ops == NULL) {
        return;
    }
    /* Calls that fail leave what they were to write as it was, hence the zeros. */
    (void)ops->runtime_version(&found.runtime);
    int code = ops->driver_version(&found.driver);
    if (code != 0 || found.driver == 0) {
        give_up(DTR__CUDA_NO_DRIVER,
                code != 0 ? ops->error_text(code) : "the CUDA runtime finds no driver");
        return;
    }
    code = ops->count(&found.count);
    if (code != 0 || found.count <= 0) {
        char reason[192];
        snprintf(reason, sizeof reason, "%s (CUDA error %d)",
                 code != 0 ? ops->error_text(code) : "the CUDA runtime counts none", code);
        give_up(DTR__CUDA_NO_DEVICE, reason);
        return;
    }
    for (int i = 0; i < found.count && i < DTR__CODE_ASKED; i++) {
        dtr__device_facts f;
        if (ops->facts(i, &f) == 0 && !dtr__cuda_has_code(ops->code, f.major, f.minor)) {
            found.no_code[i] = (dtr__no_code){ f.major, f.minor };
        }
    }
    found.ops = ops;
    found.state = DTR__CUDA_OK;
}

static void *find_symbol(const char *name) {
    return library != NULL ? dlsym(library, name) : NULL;
}

#else

static void probe(void) {
    found.state = DTR__CUDA_NOT_BUILT;
}

static void *find_symbol(const char *name) {
    (void)name;
    return NULL;
}

#endif

const dtr__cuda *dtr__cuda_get(void) {
    pthread_once(&once, probe);
    return &found;
}

void *dtr__cuda_symbol(const char *name) {
    return dtr__cuda_get()->state == DTR__CUDA_OK ? find_symbol(name) : NULL;
}

const char *dtr__cuda_text(char text[DTR__CUDA_TEXT]) {
    const dtr__cuda *c = dtr__cuda_get();
    snprintf(text, DTR__CUDA_TEXT, "%s%s%.*s", dtr__cuda_state_name(c->state),
             c->reason[0] != '\0' ? ": " : "", (int)sizeof c->reason - 1, c->reason);
    return text;
}

dtr_status dtr__cuda_status(int code, dtr_status s, const char *call, const char *file, int line) {
    if (code == 0) {
        return DTR_OK;
    }
    const char *text = found.ops != NULL ? found.ops->error_text(code) : "";
    dtr__error_context ctx = { .native = DTR_NATIVE_CUDA,
                               .native_code = code,
                               .native_text = text };
    return dtr__error_set(&ctx, s, file, line, "%s: CUDA error %d (%s)", call, code, text);
}

int dtr_device_count(dtr_device_type type) {
    switch (type) {
    case DTR_CPU:
        return 1;
    case DTR_CUDA:
        return dtr__cuda_get()->count;
    }
    return 0;
}

dtr_status dtr__device_check(dtr_device d, const char *what) {
    char text[DTR__CUDA_TEXT];
    switch (d.type) {
    case DTR_CPU:
        DTR_REQUIRE(d.index == 0, NULL, DTR_ERR_DEVICE,
                    "%s is {DTR_CPU, %d}; the only CPU device is {DTR_CPU, 0}", what, d.index);
        return DTR_OK;
    case DTR_CUDA:
        break;
    default:
        return DTR_FAIL(NULL, DTR_ERR_DEVICE,
                        "%s has type %d, which is neither DTR_CPU nor DTR_CUDA", what, (int)d.type);
    }
    const dtr__cuda *c = dtr__cuda_get();
    DTR_REQUIRE(c->state != DTR__CUDA_NOT_BUILT, NULL, DTR_ERR_DEVICE,
                "%s is {DTR_CUDA, %d}, but this build of the library has no CUDA", what, d.index);
    DTR_REQUIRE(c->state == DTR__CUDA_OK, NULL, DTR_ERR_DEVICE,
                "%s is {DTR_CUDA, %d}, but no CUDA device can be used here: %s", what, d.index,
                dtr__cuda_text(text));
    DTR_REQUIRE(d.index >= 0 && d.index < c->count, NULL, DTR_ERR_DEVICE,
                "%s is {DTR_CUDA, %d}, but this process sees %d CUDA device%s", what, d.index,
                c->count, c->count == 1 ? "" : "s");
    const dtr__no_code *none = &c->no_code[d.index < DTR__CODE_ASKED ? d.index : 0];
    DTR_REQUIRE(d.index >= DTR__CODE_ASKED || none->major == 0, NULL, DTR_ERR_DEVICE,
                "%s is {DTR_CUDA, %d}, of compute capability %d.%d, for which this build of the "
                "library has no code: it has %s; build it with CMAKE_CUDA_ARCHITECTURES=%d%d",
                what, d.index, none->major, none->minor, c->ops->code, none->major, none->minor);
    return DTR_OK;
}
