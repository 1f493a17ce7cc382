/* The shm backend: ranks of one node through the memory they share. Where the staging limit leaves
 * too little for channels it serves no messages, which then go through the mpi backend. */
#include <stdlib.h>
#include <string.h>

#include "core/backend.h"
#include "core/work.h"
#include "shm_p2p.h"
#include "topology/cache.h"

enum { POLLS_PER_RELIEF = 16 }; /* of an operation that waits */

bool dtr__shm_has_channels(const dtr_group *g) {
    const uint64_t limit = dtr__opt_number(&g->world->options, DTR__OPT_SHM_STAGING);
    return dtr__shm_channel_bytes(g->size, limit) != 0;
}

static int shm_score(const dtr_group *g, const dtr__call *call, const char **why) {
    const dtr_world *w = g->world;
    bool one_node = g->size <= DTR__SHM_MAX_RANKS;
    for (int i = 0; one_node && i < g->size; i++) {
        one_node = w->node_of[g->world_ranks[i]] == w->node;
    }
    if (g->size < 2 || !one_node || !dtr__arena_usable(w)) {
        if (why != NULL) {
            *why = !one_node     ? "its ranks are on several nodes"
                   : g->size < 2 ? "it has one rank"
                                 : "this node cannot share memory";
        }
        return 0;
    }
    if (call != NULL && dtr__kind_is_p2p(call->kind) && !dtr__shm_has_channels(g)) {
        if (why != NULL) {
            *why = "DTR_SHM_STAGING leaves too little for channels between so many ranks";
        }
        return 0;
    }
    return 60;
}

static void *shared_zeroed(dtr_world *w, size_t nbytes, uint64_t *at) {
    int owner = 0;
    uint64_t offset = 0;
    void *p = dtr__arena_alloc(w, nbytes, 4096);
    if (p == NULL || !dtr__arena_find(w, p, nbytes, &owner, &offset)) {
        return NULL;
    }
    memset(p, 0, nbytes);
    *at = dtr__shm_pack(owner, offset) + 1; /* 0 says "none" */
    return p;
}

/* ---- how much memory ---- */

/* Words of the own table, as far as the board behind it, which begins on a cache line. */
static size_t board_at(int size) {
    return (2 * (2 * (size_t)size + 1) + 7) / 8 * 8;
}

static size_t table_bytes(int size) {
    return board_at(size) * sizeof(uint64_t) + sizeof(dtr__shm_board) +
           (size_t)size * sizeof(uint64_t);
}

int dtr__shm_keeps(int size, uint64_t limit) {
    const uint64_t most =
        limit != 0 ? limit : (UINT64_C(64) << 10) + (UINT64_C(4) << 10) * (uint64_t)size;
    const uint64_t always = sizeof(dtr__shm_control) + table_bytes(size);
    const uint64_t keeps = most > always ? (most - always) / sizeof(dtr__shm_rank) : 0;
    return keeps < (uint64_t)size ? (int)keeps : size;
}

/* Blocks of ranks that `rank` keeps. */
static int kept(int size, int keeps, int rank) {
    return rank % keeps != 0 ? 0 : size - rank < keeps ? size - rank : keeps;
}

size_t dtr__shm_kept_bytes(int size, int keeps, int rank) {
    return (rank == 0 ? sizeof(dtr__shm_control) : 0) + table_bytes(size) +
           (size_t)kept(size, keeps, rank) * sizeof(dtr__shm_rank);
}

size_t dtr__shm_bounce_bytes(uint64_t limit) {
    const uint64_t usual = (uint64_t)1 << 20;
    return (size_t)(limit / 4 < usual ? limit / 4 : usual);
}

/* Every rank's piece of a chunk has a cache line at least. */
size_t dtr__shm_chunk_bytes(int size, uint64_t wish, uint64_t limit) {
    const uint64_t least = (uint64_t)64 * (uint64_t)size;
    const uint64_t channels = (uint64_t)size * dtr__shm_channel_bytes(size, limit);
    const uint64_t most = (limit - dtr__shm_bounce_bytes(limit) - channels) / 2;
    const uint64_t chunk = (wish < most ? wish : most) / 64 * 64;
    return (size_t)(chunk > least ? chunk : least);
}

/* ---- state ---- */

/* Everybody's table, and the blocks of all ranks where they are kept. Any rank's lack of memory
 * fails all alike. */
static dtr_status open_shared(dtr_group *g, dtr__shm_state *s, uint64_t *all) {
    const uint64_t limit = dtr__opt_number(&g->world->options, DTR__OPT_SHM_CONTROL);
    const int keeps = dtr__shm_keeps(g->size, limit);
    DTR_REQUIRE(keeps > 0, NULL, DTR_ERR_UNSUPPORTED,
                "group '%s': DTR_SHM_CONTROL is %llu, but %zu bytes are the least for %d ranks",
                g->name, (unsigned long long)limit, dtr__shm_kept_bytes(g->size, 1, 0), g->size);
    const size_t table = table_bytes(g->size),
                 control = dtr__shm_kept_bytes(g->size, keeps, g->rank) - table;
    uint64_t control_at = 0, table_at = 0, missing = 0;
    if (control > 0) {
        s->own_control = shared_zeroed(g->world, control, &control_at);
    }
    s->table = shared_zeroed(g->world, table, &table_at);
    DTR_TRY(dtr__exchange_allgather(dtr__members_of_group(g), &control_at, all, sizeof *all));
    for (int r = 0; r < g->size; r++) {
        const int keeper = r / keeps * keeps;
        missing += all[keeper] == 0;
        unsigned char *at = all[keeper] == 0 ? NULL : dtr__shm_unpack(g->world, all[keeper] - 1);
        if (at != NULL && r == 0) {
            s->control = (dtr__shm_control *)(void *)at;
        }
        at += at != NULL && keeper == 0 ? sizeof(dtr__shm_control) : 0;
        s->rank[r] = at == NULL ? NULL : (dtr__shm_rank *)(void *)at + r % keeps;
    }
    DTR_TRY(dtr__exchange_allgather(dtr__members_of_group(g), &table_at, all, sizeof *all));
    for (int r = 0; r < g->size; r++) {
        missing += all[r] == 0;
        s->tables[r] = all[r] == 0 ? NULL : dtr__shm_unpack(g->world, all[r] - 1);
        s->boards[r] = all[r] == 0 ? NULL : (void *)(s->tables[r] + board_at(g->size));
    }
    DTR_REQUIRE(missing == 0, NULL, DTR_ERR_NOMEM,
                "group '%s': no node-shared memory for its control block of %zu bytes: raise "
                "DTR_ARENA, or make room in /dev/shm",
                g->name, dtr__shm_kept_bytes(g->size, keeps, 0));
    s->me = s->rank[g->rank];
    return DTR_OK;
}

static void shm_close(dtr_group *g, void *opaque) {
    dtr__shm_state *s = opaque;
    dtr__shm_end(s);
    if (s->boards != NULL && s->boards[g->rank] != NULL) {
        dtr__shm_withdraw(s->boards[g->rank], DTR__SHM_EVERYTHING);
    }
    dtr__shm_warn_kept(g, s);
    /* Of a broken group the others may still be reading why, fill their slots or write what they
     * stage: that stays until the world ends. */
    const bool healthy = dtr__group_is_over(g);
    dtr__shm_p2p_free(g, s, healthy);
    if (healthy) {
        dtr__arena_free(g->world, s->own_control);
        dtr__arena_free(g->world, s->table);
    }
    if (healthy || g->size > 2) {
        dtr__arena_free(g->world, s->own_stage);
    }
    free(s->bounce);
    free(s->tables);
    free(s->boards);
    free(s->rank);
    free(s);
}

static dtr_status shm_open(dtr_group *g, void **state) {
    (void)dtr__last_cache(); /* which takes longer than an operation the first time */
    dtr__shm_state *s = calloc(1, sizeof *s);
    uint64_t *all = calloc((size_t)g->size, sizeof *all);
    if (s != NULL) {
        const uint64_t limit = dtr__opt_number(&g->world->options, DTR__OPT_SHM_STAGING);
        const uint64_t chunk = g->world->tune.value[DTR__TUNE_CHUNK];
        s->chunk_least = dtr__shm_chunk_bytes(g->size, chunk, limit);
        s->chunk = dtr__shm_chunk_bytes(g->size, DTR__SHM_STRETCH * chunk, limit);
        s->sharers = g->size;
        s->tables = calloc((size_t)g->size, sizeof *s->tables);
        s->boards = calloc((size_t)g->size, sizeof *s->boards);
        s->rank = calloc((size_t)g->size, sizeof *s->rank);
    }
    bool all_there =
        s != NULL && all != NULL && s->tables != NULL && s->boards != NULL && s->rank != NULL;
    dtr_status status =
        all_there ? DTR_OK : DTR_FAIL(NULL, DTR_ERR_NOMEM, "out of memory for group '%s'", g->name);
    status = dtr__agree_status(dtr__members_of_group(g), status, "opening backend shm");
    if (status == DTR_OK) {
        status = open_shared(g, s, all);
    }
    free(all);
    if (status == DTR_OK) {
        *state = s;
    } else if (s != NULL) {
        shm_close(g, s);
    }
    return status;
}

static dtr_status shm_progress(dtr_group *g, void *opaque, dtr_work *w, bool *done) {
    dtr__shm_state *s = opaque;
    const bool p2p = dtr__kind_is_p2p(w->call.kind);
    dtr_status status =
        p2p ? dtr__shm_p2p_progress(g, s, w, done) : dtr__shm_advance(g, s, w, done);
    if (!p2p && (status < 0 || *done)) {
        dtr__shm_end(s);
    }
    if (status == DTR_OK && !*done && ++s->polls % POLLS_PER_RELIEF == 0) {
        dtr__shm_p2p_relieve(g, s);
    }
    return status;
}

static dtr_status shm_start(dtr_group *g, void *opaque, dtr_work *w, bool *done) {
    dtr__shm_state *s = opaque;
    if (dtr__kind_is_p2p(w->call.kind)) {
        return dtr__shm_p2p_start(g, s, w, done);
    }
    dtr__shm_begin(s, &w->call);
    return shm_progress(g, s, w, done);
}

/* What broke the group; a part is given up before it has, for this thread's last error. */
static void publish_failure(dtr_group *g, dtr__shm_state *s) {
    dtr_error e = DTR_ERROR_INIT;
    dtr_status status = (dtr_status)atomic_load(&g->status);
    if (status != DTR_OK) {
        (void)dtr__error_restore(g->error, status);
    }
    dtr_last_error(&e);
    (void)dtr__shm_publish(g, s, status != DTR_OK ? status : e.status, e.message);
}

/* This rank gives up: the others must not wait for it until their own limits. */
static void shm_cancel(dtr_group *g, void *opaque, dtr_work *w) {
    dtr__shm_state *s = opaque;
    if (dtr__kind_is_p2p(w->call.kind)) {
        dtr__shm_p2p_cancel(s, w);
        return;
    }
    if (!s->agreed_break) {
        publish_failure(g, s);
    }
    dtr__shm_end(s);
}

static void shm_withdraw(dtr_group *g, void *opaque) {
    dtr__shm_state *s = opaque;
    dtr__shm_take_back(g, s);
}

static const char *shm_waits_for(dtr_group *g, void *opaque, dtr_work *w, char *text, size_t cap) {
    dtr__shm_state *s = opaque;
    if (dtr__kind_is_p2p(w->call.kind)) {
        dtr__messages_wait_for(g, w->request, text, cap);
        return text;
    }
    return dtr__shm_missing(g, s, &w->call, text, cap);
}

const dtr__backend dtr__backend_shm = {
    .name = "shm",
    .kinds = DTR__KINDS_BASIC,
    .device = DTR_CPU,
    .compares_itself = true,
    .without_mpi = true,
    .score = shm_score,
    .open = shm_open,
    .close = shm_close,
    .start = shm_start,
    .progress = shm_progress,
    .cancel = shm_cancel,
    .withdraw = shm_withdraw,
    .waits_for = shm_waits_for,
    .fast_path_accept = dtr__shm_fast_path_accept,
    .fast_path_start = dtr__shm_fast_path_start,
    .fast_path_poll = dtr__shm_fast_path_poll,
    .fast_path_message = dtr__shm_fast_path_message,
    .fast_path_to_work = dtr__shm_fast_path_to_work,
};
