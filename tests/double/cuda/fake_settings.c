/* Settings from the environment, injected faults, call log and trace. */
#include "fake.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static fake_settings settings;
static _Atomic unsigned reloads; /* of the settings */
static _Atomic int hanging;      /* threads in a call that does not return */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* log, trace file, counts of faults */
static FILE *trace;
static char *log_text, *log_copy;
static size_t log_used, log_size;
static bool log_on;
static _Thread_local cudaError_t last_error;
static _Thread_local unsigned delay_state;

void fake_die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("stand-in CUDA: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

int64_t fake_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- settings ---- */

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0') {
        return otherwise;
    }
    char *end = NULL;
    long value = strtol(text, &end, 0);
    if (*end != '\0' || value < 0) {
        fake_die("%s is \"%s\"; a number from 0 on is needed", name, text);
    }
    return value;
}

/* "cudaMalloc:3:2,cudaFree:1:4", or without codes for hangs. */
static void read_faults(const char *variable, bool has_code) {
    const char *text = getenv(variable);
    char all[512], *rest = all;
    snprintf(all, sizeof all, "%s", text != NULL ? text : "");
    for (char *one; (one = strsep(&rest, ",")) != NULL;) {
        if (*one == '\0') {
            continue;
        }
        fake_fault f = { .seen = 0 };
        int fields = sscanf(one, "%63[^:]:%ld:%d", f.name, &f.nth, &f.code);
        if (fields != (has_code ? 3 : 2) || f.nth < 0 || settings.n_faults == FAKE_FAULTS) {
            fake_die("%s is \"%s\"; expected at most %d of name:nth%s", variable, text, FAKE_FAULTS,
                     has_code ? ":code" : "");
        }
        settings.faults[settings.n_faults++] = f;
    }
}

static void read_cost(void) {
    const char *text = getenv("DTR_FAKE_CUDA_COST");
    double gbytes = 0, latency_us = 0;
    if (text == NULL || *text == '\0') {
        return;
    }
    if (sscanf(text, "%lf:%lf", &gbytes, &latency_us) != 2 || gbytes <= 0 || latency_us < 0) {
        fake_die("DTR_FAKE_CUDA_COST is \"%s\"; expected GB/s:latency in us, as 50:10", text);
    }
    settings.cost_bytes_per_s = gbytes * 1e9;
    settings.cost_latency_s = latency_us * 1e-6;
}

/* DTR_FAKE_CUDA_PTX: 0, 1 for the PTX that libdtr_cuda has, another architecture, or a file. */
static void read_ptx(void) {
    const char *text = getenv("DTR_FAKE_CUDA_PTX");
    if (text == NULL || *text == '\0' || strcmp(text, "0") == 0) {
        return;
    }
    const bool file = strchr(text, '/') != NULL, first = strcmp(text, "1") == 0;
    snprintf(settings.ptx, sizeof settings.ptx, file ? "%s" : "libptx%s.so", first ? "" : text);
}

static void read_all(void) {
    settings = (fake_settings){ .n_devices = (int)number("DTR_FAKE_CUDA_NDEV", 1),
                                .driver = (int)number("DTR_FAKE_CUDA_DRIVER", CUDART_VERSION),
                                .capability = (int)number("DTR_FAKE_CUDA_CAPABILITY", 90),
                                .memory = (size_t)number("DTR_FAKE_CUDA_MEM", 2L << 30),
                                .strict = number("DTR_FAKE_CUDA_STRICT", 0) != 0,
                                .delay_us = (unsigned)number("DTR_FAKE_CUDA_DELAY_US", 0),
                                .seed = (unsigned)number("DTR_FAKE_CUDA_SEED", 1) };
    if (settings.n_devices > FAKE_DEVICES) {
        fake_die("DTR_FAKE_CUDA_NDEV is %d; at most %d devices", settings.n_devices, FAKE_DEVICES);
    }
    const char *uuid = getenv("DTR_FAKE_CUDA_UUID");
    snprintf(settings.uuid, sizeof settings.uuid, "%s", uuid != NULL ? uuid : "");
    read_faults("DTR_FAKE_CUDA_ERR", true);
    read_faults("DTR_FAKE_CUDA_HANG", false);
    read_cost();
    read_ptx();
    if (settings.delay_us > 0) {
        fprintf(stderr, "stand-in CUDA: random delays up to %u us, DTR_FAKE_CUDA_SEED=%u\n",
                settings.delay_us, settings.seed);
    }
    const char *path = getenv("DTR_FAKE_CUDA_TRACE");
    if (trace != NULL) {
        fclose(trace);
        trace = NULL;
    }
    if (path != NULL && *path != '\0') {
        trace = fopen(path, "a");
        if (trace == NULL) {
            fake_die("cannot write DTR_FAKE_CUDA_TRACE=%s: %s", path, strerror(errno));
        }
    }
}

void fake_settings_once(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_all);
}

const fake_settings *fake_set(void) {
    fake_settings_once();
    return &settings;
}

API void dtr_fake_cuda_reload(void) {
    fake_settings_once();
    fake_lock(&lock);
    read_all();
    atomic_fetch_add(&reloads, 1);
    fake_unlock(&lock);
}

API int dtr_fake_cuda_hanging(void) {
    return atomic_load(&hanging);
}

/* ---- log and trace ---- */

static void log_line(const char *function, const char *format, va_list args) {
    fake_lock(&lock);
    if (log_on) {
        char line[512];
        int n = snprintf(line, sizeof line, "%s ", function);
        n += vsnprintf(line + n, sizeof line - (size_t)n, format, args);
        n = n < (int)sizeof line - 40 ? n : (int)sizeof line - 40;
        n += snprintf(line + n, sizeof line - (size_t)n, " thread=%d\n", (int)gettid());
        if (log_used + (size_t)n + 1 > log_size) {
            log_size = 2 * log_size + 4096;
            log_text = realloc(log_text, log_size);
            if (log_text == NULL) {
                fake_die("no memory for the call log");
            }
        }
        memcpy(log_text + log_used, line, (size_t)n + 1);
        log_used += (size_t)n;
    }
    fake_unlock(&lock);
}

API void dtr_fake_cuda_log(const char *function, const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_line(function, format, args);
    va_end(args);
}

API void dtr_fake_cuda_log_start(void) {
    fake_lock(&lock);
    log_on = true;
    log_used = 0;
    fake_unlock(&lock);
}

API const char *dtr_fake_cuda_log_text(void) {
    fake_lock(&lock);
    free(log_copy);
    log_copy = strndup(log_text != NULL ? log_text : "", log_used);
    const char *text = log_copy != NULL ? log_copy : "";
    fake_unlock(&lock);
    return text;
}

API int dtr_fake_cuda_log_count(const char *text) {
    int n = 0;
    fake_lock(&lock);
    for (char *line = log_text, *end; log_used > 0 && line < log_text + log_used; line = end + 1) {
        end = strchr(line, '\n');
        *end = '\0';
        n += strstr(line, text) != NULL ? 1 : 0;
        *end = '\n';
    }
    fake_unlock(&lock);
    return n;
}

void fake_trace(int stream, const char *name, int64_t begin_ns, int64_t end_ns) {
    fake_lock(&lock);
    if (trace != NULL) {
        fprintf(trace, "%d,%s,%lld,%lld\n", stream, name, (long long)begin_ns, (long long)end_ns);
        fflush(trace);
    }
    fake_unlock(&lock);
}

/* ---- entering a call ---- */

/* Until the settings are read again. */
static void hang(unsigned since) {
    const struct timespec nap = { 0, 10000000 };
    atomic_fetch_add(&hanging, 1);
    while (atomic_load(&reloads) == since) {
        nanosleep(&nap, NULL);
    }
    atomic_fetch_sub(&hanging, 1);
}

static cudaError_t injected(const char *function) {
    cudaError_t e = cudaSuccess;
    bool hangs = false;
    if (settings.n_faults == 0) {
        return cudaSuccess;
    }
    fake_lock(&lock);
    for (int i = 0; i < settings.n_faults; i++) {
        fake_fault *f = &settings.faults[i];
        if (strcmp(f->name, function) == 0 && (++f->seen == f->nth || f->nth == 0)) {
            e = (cudaError_t)f->code;
            hangs = f->code == 0;
        }
    }
    const unsigned since = atomic_load(&reloads);
    fake_unlock(&lock);
    if (hangs) {
        hang(since);
    }
    return e;
}

cudaError_t fake_enter_any(const char *function, const char *format, ...) {
    fake_settings_once();
    va_list args;
    va_start(args, format);
    log_line(function, format, args);
    va_end(args);
    return injected(function);
}

cudaError_t fake_enter(const char *function, const char *format, ...) {
    fake_settings_once();
    va_list args;
    va_start(args, format);
    log_line(function, format, args);
    va_end(args);
    cudaError_t e = injected(function);
    if (e == cudaSuccess && settings.driver == 0) {
        e = cudaErrorInsufficientDriver;
    } else if (e == cudaSuccess && settings.n_devices == 0) {
        e = cudaErrorNoDevice;
    }
    if (e == cudaSuccess) {
        fake_context_enter(function);
    }
    return e != cudaSuccess ? e : fake_capture_enter(function);
}

cudaError_t fake_result(cudaError_t e) {
    if (e != cudaSuccess) {
        last_error = e;
    }
    return e;
}

API cudaError_t cudaPeekAtLastError(void) {
    return fake_set()->driver == 0 ? cudaErrorInsufficientDriver : last_error;
}

API cudaError_t cudaGetLastError(void) {
    cudaError_t e = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return e;
}

API void dtr_fake_cuda_delay(void) {
    const fake_settings *s = fake_set();
    if (s->delay_us == 0) {
        return;
    }
    if (delay_state == 0) {
        static unsigned n_threads;
        delay_state = s->seed * 2654435761u + __atomic_add_fetch(&n_threads, 1, __ATOMIC_RELAXED);
    }
    usleep((unsigned)rand_r(&delay_state) % (s->delay_us + 1));
}
