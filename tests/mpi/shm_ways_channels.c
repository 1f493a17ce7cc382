/* The channels of the shm backend. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/shm/shm_p2p.h"
#include "harness.h"
#include "parts.h"
#include "settings.h"
#include "world/world.h"

static const dtr__shm_state *state_of(const dtr_group *g) {
    for (int b = 0; b < DTR__MAX_BACKENDS; b++) {
        if (g->backends.table[b] == &dtr__backend_shm) {
            return g->backends.state[b];
        }
    }
    return NULL;
}

static const dtr__shm_p2p *channels_of(const dtr_group *g) {
    const dtr__shm_state *s = state_of(g);
    return s != NULL ? s->p2p : NULL;
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

/* ---- memory that two ranks hand to each other ---- */

enum { MESSAGE = 16 << 10, TIMES = 21 /* odd */ };
static unsigned char there[MESSAGE], here[MESSAGE];

static void send_it(dtr_group *g, int number) {
    memset(there, 2 * number + g->rank, sizeof there);
    TH_IS(dtr_send(g, dtr_cpu(there, MESSAGE, DTR_U8), 1 - g->rank, 3, NULL, NULL), DTR_OK);
}

static void receive_it(dtr_group *g, int number) {
    const unsigned char want = (unsigned char)(2 * number + 1 - g->rank);
    int wrong = 0;
    memset(here, ~want, sizeof here);
    TH_IS(dtr_recv(g, dtr_cpu(here, MESSAGE, DTR_U8), 1 - g->rank, 3, NULL, NULL), DTR_OK);
    for (int i = 0; i < MESSAGE; i++) {
        wrong += here[i] != want;
    }
    TH_CHECK(wrong == 0, "message %d: %d bytes are wrong", number, wrong);
}

/* The blocks that this rank has for messages to the other one. */
static const dtr__shm_out *to_other(const dtr_group *g) {
    return &channels_of(g)->out[1 - g->rank];
}

/* An answer takes the block of its message. */
static void to_and_fro(dtr_group *g) {
    uint64_t first = 0;
    for (int i = 0; i < TIMES; i++) {
        g->rank == 0 ? send_it(g, i) : receive_it(g, i);
        g->rank == 0 ? receive_it(g, i) : send_it(g, i);
        first = i == 0 ? to_other(g)->block[0].at : first;
        TH_CHECK(to_other(g)->n_blocks == 1 && to_other(g)->block[0].at == first,
                 "after answer %d: %d blocks", i, to_other(g)->n_blocks);
    }
}

/* Messages that cross each other change blocks. */
static void across(dtr_group *g) {
    for (int i = 0; i < TIMES; i++) {
        const uint64_t had = to_other(g)->block[0].at;
        send_it(g, i);
        TH_CHECK(to_other(g)->n_blocks == 0, "%d blocks are left", to_other(g)->n_blocks);
        receive_it(g, i);
        TH_CHECK(to_other(g)->n_blocks == 1 && to_other(g)->block[0].at != had,
                 "after message %d: %d blocks", i, to_other(g)->n_blocks);
    }
}

/* Who only sends gives its block away and goes on in its ring, also where nobody receives yet. */
static void one_way(dtr_group *g, int from) {
    for (int i = 0; i < TIMES && g->rank == from; i++) {
        send_it(g, i);
    }
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_OK);
    for (int i = 0; i < TIMES && g->rank != from; i++) {
        receive_it(g, i);
    }
    TH_CHECK(to_other(g)->n_blocks == (g->rank == from ? 0 : 2), "%d blocks of two",
             to_other(g)->n_blocks);
}

/* Two ranks of one node; NULL: this is none of them. */
static dtr_group *pair_of(dtr_world *w) {
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(dtr_world_group(w), th_rank() < 2 ? 0 : DTR_COLOR_NONE, 0, NULL, &g));
    return g;
}

/* P2P11 */
START_TEST(blocks_go_to_and_fro) {
    dtr_group *g = pair_of(th_world());
    if (g != NULL) {
        to_and_fro(g);
        across(g);
        one_way(g, 0);
        one_way(g, 1);
        one_way(g, 1);
        TH_IS(dtr_group_destroy(g), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

enum { CHUNK = 4 << 10, CHUNKS = 16 }; /* bytes; of the longest call */

static void exchange_all(dtr_group *g, int number, size_t n, dtr_status want) {
    static float in[MESSAGE], out[2 * MESSAGE];
    for (size_t i = 0; i < n; i++) {
        in[i] = (float)((size_t)number + (size_t)g->rank * i);
    }
    const size_t mine = want == DTR_OK ? n : n - (size_t)g->rank;
    TH_IS(dtr_allgather(g, dtr_cpu(in, mine, DTR_F32), dtr_cpu(out, 2 * mine, DTR_F32), NULL, NULL),
          want);
    int wrong = 0;
    for (size_t i = 0; i < 2 * n && want == DTR_OK; i++) {
        wrong += out[i] != (float)((size_t)number + i / n * (i % n));
    }
    TH_CHECK(wrong == 0, "call %d of %zu: %d elements are wrong", number, n, wrong);
}

static size_t used_buffers(const dtr__shm_state *s) {
    size_t n = 0;
    for (int i = 0; i < DTR__SHM_STAGES; i++) {
        n += s->stage_used[i] != 0;
    }
    return n;
}

/* Data that goes an even number of times round the buffers ends where it began. What the round
 * before the last has left behind there counts as used. */
static void go_on_in_the_others(dtr_group *g) {
    enum { BUFFERS = DTR__SHM_STAGES_LAPPED };
    const dtr__shm_state *s = state_of(g);
    bool home = true;
    for (int i = 0; i < TIMES; i++) {
        const size_t chunks = BUFFERS + (size_t)i % (CHUNKS - BUFFERS + 1),
                     rounds = (chunks + BUFFERS - 1) / BUFFERS,
                     left = rounds > 1 ? rounds * BUFFERS - chunks : 0;
        exchange_all(g, i, chunks * CHUNK / sizeof(float), DTR_OK);
        home = rounds % 2 == 0 ? home : !home;
        TH_CHECK((dtr__shm_unpack(g->world, s->stage_at) == s->own_stage) == home,
                 "after call %d of %zu chunks", i, chunks);
        TH_CHECK(used_buffers(s) == left, "after call %d of %zu chunks %zu buffers are in use", i,
                 chunks, used_buffers(s));
    }
}

/* Two ranks that have exchanged something go on in each other's staging memory. Where the group
 * breaks it stays: the other one may yet write there. */
START_TEST(staging_memory_goes_to_and_fro) {
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_CMA", "off", "DTR_TUNE", "slices=0,chunk=8K");
    for (int broken = 0; broken < 2; broken++) {
        const size_t before = dtr__arena_used(w);
        dtr_group *g = pair_of(w);
        if (g != NULL) {
            go_on_in_the_others(g);
            const size_t used = dtr__arena_used(w);
            TH_CHECK(used > before + MESSAGE, "%zu bytes are staging memory", used - before);
            if (broken) {
                exchange_all(g, 0, MESSAGE, DTR_ERR_MISMATCH);
            }
            TH_IS(dtr_group_destroy(g), DTR_OK);
            TH_CHECK(broken ? dtr__arena_used(w) >= used : dtr__arena_used(w) == before,
                     "of %zu bytes %zu are left", used, dtr__arena_used(w));
        }
    }
    TH_AGREE();
    TH_OK(dtr_world_destroy(w));
}
END_TEST

void shm_ways_channels(TCase *tc) {
    th_add(tc, blocks_go_to_and_fro, 2, 0);
    th_add(tc, staging_memory_goes_to_and_fro, 2, 0);
    th_add(tc, channels_are_mapped_and_have_room, 2, 0);
}
