/* From where operations are called: return addresses beside the records, kept as module and offset,
 * because addresses mean nothing once the process has ended. */
#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <string.h>

#include "base/world.h"
#include "recorder/recorder.h"
#include "recorder/recording.h"

enum { LOOK_MOST = 32, OFFSET_BITS = 48 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* orders writers of modules */

static dtr__rec_module *modules_of(const dtr__rec_header *h) {
    return (dtr__rec_module *)((char *)h + h->stacks_at + h->stacks * sizeof(dtr__rec_frames));
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Its place in the table + 1; 0: the table is full. */
static uint64_t module_place(dtr__rec_header *h, const Dl_info *info) {
    dtr__rec_module *all = modules_of(h);
    const uint64_t base = (uint64_t)(uintptr_t)info->dli_fbase;
    uint64_t place = 0;
    pthread_mutex_lock(&lock);
    for (uint64_t i = 0; i < DTR__RECORDING_MODULES && place == 0; i++) {
        if (atomic_load(&all[i].base) == 0) {
            int n = snprintf(all[i].name, sizeof all[i].name, "%s", base_name(info->dli_fname));
            if (n >= (int)sizeof all[i].name) { /* not to be taken for another module */
                all[i].name[sizeof all[i].name - 2] = '~';
            }
            atomic_store(&all[i].base, base);
        }
        place = atomic_load(&all[i].base) == base ? i + 1 : 0;
    }
    pthread_mutex_unlock(&lock);
    return place;
}

static uint64_t frame_word(dtr__rec_header *h, const void *address) {
    Dl_info info;
    if (dladdr(address, &info) == 0 || info.dli_fname == NULL || info.dli_fbase == NULL) {
        return 0;
    }
    uint64_t offset = (uint64_t)((const char *)address - (const char *)info.dli_fbase);
    return module_place(h, &info) << OFFSET_BITS | (offset & ((UINT64_C(1) << OFFSET_BITS) - 1));
}

void dtr__rec_stack_warm(dtr__rec_header *h) {
    void *frame[2];
    if (h->stacks != 0) {
        (void)backtrace(frame, 2);
    }
}

void dtr__rec_stack(dtr_world *world, uint64_t number, const void *return_address) {
    dtr__rec_header *h = dtr__recorder_header(world);
    void *frame[LOOK_MOST];
    if (h->stacks == 0) {
        return;
    }
    int n = backtrace(frame, LOOK_MOST), at = 0;
    while (at < n && frame[at] != return_address) {
        at++;
    }
    _Atomic uint64_t *word = (_Atomic uint64_t *)((char *)h + h->stacks_at) +
                             (number & (h->stacks - 1)) * (sizeof(dtr__rec_frames) / sizeof *word);
    atomic_store_explicit(&word[0], UINT64_MAX, memory_order_relaxed);
    for (int i = 0; i < DTR__RECORDING_FRAMES; i++) {
        uint64_t value = at + i < n ? frame_word(h, frame[at + i]) : 0;
        atomic_store_explicit(&word[1 + i], value, memory_order_release);
    }
    atomic_store_explicit(&word[0], number, memory_order_release);
}

/* ---- reading ---- */

const char *dtr__recording_stack(const dtr__recording *r, const dtr__record *rec, char *text,
                                 size_t cap) {
    size_t at = 0;
    text[0] = '\0';
    if (r->stacks == NULL || r->stacks[rec->number & (r->n_stacks - 1)].number != rec->number) {
        return text;
    }
    const dtr__rec_frames *s = &r->stacks[rec->number & (r->n_stacks - 1)];
    const dtr__rec_module *module = (const dtr__rec_module *)(r->stacks + r->n_stacks);
    for (int i = 0; i < DTR__RECORDING_FRAMES && s->frame[i] != 0 && at + 1 < cap; i++) {
        uint64_t place = s->frame[i] >> OFFSET_BITS;
        uint64_t offset = s->frame[i] & ((UINT64_C(1) << OFFSET_BITS) - 1);
        bool known = place >= 1 && place <= DTR__RECORDING_MODULES;
        int n = snprintf(text + at, cap - at, "%s%.55s+0x%llx", i > 0 ? " < " : "",
                         known ? module[place - 1].name : "?", (unsigned long long)offset);
        at += n > 0 ? (size_t)n : 0;
    }
    return text;
}
