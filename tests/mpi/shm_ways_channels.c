/* The channels of the shm backend. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/shm/shm_p2p.h"
#include "harness.h"
#include "parts.h"
#include "world/world.h"

static const dtr__shm_p2p *channels_of(const dtr_group *g) {
    for (int b = 0; b < DTR__MAX_BACKENDS; b++) {
        if (g->backends.table[b] == &dtr__backend_shm) {
            return ((const dtr__shm_state *)g->backends.state[b])->p2p;
        }
    }
    return NULL;
}

/* Bit 63 of a page's word says that it is mapped, bit 62 that it has been since. */
static size_t unmapped_pages(const void *from, size_t nbytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)from / page;
    size_t missing = 0;
    FILE *f = fopen("/proc/self/pagemap", "rb");
    for (size_t i = 0; f != NULL && i < nbytes / page; i++) {
        uint64_t word = 0;
        bool known = fseek(f, (long)((first + i) * sizeof word), SEEK_SET) == 0 &&
                     fread(&word, sizeof word, 1, f) == 1;
        missing += known && word >> 62 == 0;
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return missing;
}

static bool kernel_maps_ahead(void) {
    enum { BYTES = 1 << 16, POPULATE_WRITE = 23 };
    void *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool can = p != MAP_FAILED && madvise(p, BYTES, POPULATE_WRITE) == 0;
    if (p != MAP_FAILED) {
        can = can && unmapped_pages(p, BYTES) == 0;
        (void)munmap(p, BYTES);
    }
    return can;
}

/* One number there, one back. */
static void exchange(dtr_group *g, int peer, int64_t i) {
    int64_t x = 2 * i + th_rank(), y = -1;
    for (int k = 0; k < 2; k++) {
        TH_IS(k == (th_rank() & 1) ? dtr_send(g, dtr_cpu(&x, 1, DTR_I64), peer, 1, NULL, NULL)
                                   : dtr_recv(g, dtr_cpu(&y, 1, DTR_I64), peer, 1, NULL, NULL),
              DTR_OK);
    }
    TH_CHECK(y == 2 * i + peer, "exchange %d gave %lld", (int)i, (long long)y);
}

/* After the first message no page of a channel is new to either end; one that nobody receives from
 * takes in half a ring of short messages, wherever they begin. */
START_TEST(channels_are_mapped_and_have_room) {
    enum { ROWS = 5 };
    dtr_group *g = th_group();
    const int peer = th_rank() ^ 1;
    const bool pairs = peer < th_size(), sends = pairs && th_rank() < peer;
    const dtr__shm_p2p *p = NULL;
    if (pairs) {
        exchange(g, peer, 0);
        p = channels_of(g);
    }
    if (p != NULL && kernel_maps_ahead()) {
        size_t out = unmapped_pages(p->out[peer].channel, p->channel_bytes);
        size_t in = unmapped_pages(p->in[peer].channel, p->channel_bytes);
        TH_CHECK(out == 0 && in == 0, "%zu and %zu pages are not mapped", out, in);
    }
    for (int t = 0; t < ROWS; t++) {
        const int64_t many = p != NULL ? (int64_t)p->out[peer].channel->lines / 2 - 100 : 0;
        for (int64_t i = 0; i < many / 2 && sends; i++) {
            TH_IS(dtr_send(g, dtr_cpu(&i, 1, DTR_I64), peer, 2, NULL, NULL), DTR_OK);
        }
        th_barrier();
        for (int64_t i = 0, y = -1; i < many / 2 && pairs && !sends; i++) {
            TH_IS(dtr_recv(g, dtr_cpu(&y, 1, DTR_I64), peer, 2, NULL, NULL), DTR_OK);
            TH_CHECK(y == i, "message %d gave %lld", (int)i, (long long)y);
        }
        for (int64_t i = 0; i < 300 && pairs; i++) { /* it then begins elsewhere */
            exchange(g, peer, i);
        }
        th_barrier();
    }
    TH_AGREE();
}
END_TEST

void shm_ways_channels(TCase *tc) {
    th_add(tc, channels_are_mapped_and_have_room, 2, 0);
}
