/* Node-shared blocks of the other ranks by dtr_peer_pointer, and dtr_node_barrier. With
 * DTR_NODE_RANKS the ranks of one host are several nodes. */
#include <stdlib.h>
#include <string.h>

#include <dtr/device.h>

#include "harness.h"
#include "memory/arena.h"
#include "world/world.h"

enum { WORDS = 3000 };
static const dtr_device cpu = { DTR_CPU, 0 };
static dtr_world *world;
static int me, n; /* on this node */

static void begin(void) {
    world = th_world();
    me = dtr_world_local_rank(world);
    n = dtr_world_local_size(world);
}

static void *take(size_t nbytes) {
    void *p = NULL;
    TH_IS(dtr_alloc(world, cpu, DTR_MEM_SHARED, nbytes, &p), DTR_OK);
    return p;
}

static void refused(const void *shared, int local_rank, const char *why) {
    TH_CHECK(dtr_peer_pointer(world, shared, local_rank) == NULL, "%s: not refused", why);
    TH_MESSAGE(why);
}

/* ---- the barrier alone, also where the node cannot share memory ---- */

START_TEST(waits_for_the_last) {
    begin();
    for (int round = 0; round < 20; round++) {
        uint64_t entered[th_size()];
        const uint64_t in = (uint64_t)(th_now() * 1e9);
        TH_IS(dtr_node_barrier(world), DTR_OK);
        const uint64_t left = (uint64_t)(th_now() * 1e9);
        th_gather_u64(in, entered);
        for (int i = 0; i < n; i++) {
            TH_CHECK(left >= entered[world->local_world[i]],
                     "round %d: left before local rank %d had come", round, i);
        }
        TH_AGREE();
    }
}
END_TEST

START_TEST(is_listed_nowhere) {
    begin();
    const int before = dtr_world_group_count(world);
    dtr_group *mine = NULL;
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.name = "node";
    TH_OK(dtr_node_barrier(world));
    TH_CHECK(dtr_world_group_count(world) == before, "the group of the node is counted");
    TH_CHECK(dtr_world_find_group(world, "node") == NULL, "the group of the node is found");
    TH_OK(dtr_group_create(world, NULL, th_size(), &o, &mine)); /* the name is the program's */
    TH_OK(dtr_group_destroy(mine));
    TH_IS(dtr_node_barrier(NULL), DTR_ERR_ARG);
    TH_AGREE();
}
END_TEST

/* A rank that stays away is named, within the world's limit, and the error stays. */
START_TEST(has_the_worlds_limit) {
    double limit = 0.5;
    begin();
    do {
        dtr_world *w = NULL;
        dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
        char who[40];
        o.timeout_s = limit;
        snprintf(who, sizeof who, "rank %d", n - 1);
        TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_OK);
        TH_IS(dtr_node_barrier(w), DTR_OK);
        th_barrier();
        if (n == 1) { /* alone on its node it waits for nobody */
            TH_IS(dtr_node_barrier(w), DTR_OK);
        } else if (me != n - 1) {
            const th_start since = th_begin();
            TH_IS(dtr_node_barrier(w), DTR_ERR_TIMEOUT);
            TH_CHECK(th_in_time(since, limit), "the barrier took far longer than its limit");
            TH_MESSAGE(who);
            TH_MESSAGE("barrier");
            TH_MESSAGE("peer_pointer.c:");
        }
        th_barrier();
        TH_IS(dtr_node_barrier(w), n == 1 ? DTR_OK : DTR_ERR_TIMEOUT);
        TH_IS(dtr_group_status(dtr_world_group(w)), DTR_OK);
        (void)dtr_world_destroy(w);
    } while (th_patience(&limit));
    TH_AGREE();
}
END_TEST

/* ---- the pointers ---- */

START_TEST(reads_and_writes_in_place) {
    begin();
    int64_t *own = take(WORDS * sizeof *own);
    for (int i = 0; i < WORDS; i++) {
        own[i] = 1000000 * me + i;
    }
    TH_OK(dtr_node_barrier(world));
    for (int r = 0; r < n; r++) {
        const int64_t *all = dtr_peer_pointer(world, own, r);
        const int64_t *last = dtr_peer_pointer(world, &own[WORDS - 1], r);
        TH_CHECK(all != NULL && last == all + WORDS - 1, "local rank %d: %p and %p", r,
                 (const void *)all, (const void *)last);
        TH_CHECK(r != me || all == own, "the own block lies elsewhere");
        for (int i = 0; all != NULL && i < WORDS; i++) {
            TH_CHECK(all[i] == 1000000 * r + i, "local rank %d, word %d: %lld", r, i,
                     (long long)all[i]);
        }
    }
    TH_OK(dtr_node_barrier(world));
    int64_t *next = dtr_peer_pointer(world, own, (me + 1) % n);
    if (next != NULL) {
        next[7] = -me;
    }
    TH_OK(dtr_node_barrier(world));
    TH_CHECK(own[7] == -((me + n - 1) % n), "word 7 is %lld", (long long)own[7]);
    TH_OK(dtr_node_barrier(world));
    TH_OK(dtr_free(world, own));
}
END_TEST

/* Every rank reads in each round what all others have stored in it. */
START_TEST(orders_stores) {
    const int rounds = TH_SANITIZED ? 300 : 3000;
    begin();
    int *own = take(2 * sizeof *own), *all[2][n], wrong = 0;
    TH_OK(dtr_node_barrier(world));
    for (int r = 0; r < n; r++) {
        all[0][r] = dtr_peer_pointer(world, &own[0], r);
        all[1][r] = dtr_peer_pointer(world, &own[1], r);
        TH_CHECK(all[0][r] != NULL && all[1][r] != NULL, "local rank %d: NULL", r);
    }
    TH_AGREE();
    for (int i = 1; i <= rounds; i++) { /* two places by turns need one barrier a round */
        own[i % 2] = i;
        dtr_status s = dtr_node_barrier(world);
        TH_CHECK(s == DTR_OK, "round %d: %s", i, dtr_last_error_message());
        for (int r = 0; r < n; r++) {
            wrong += *all[i % 2][r] != i;
        }
    }
    TH_ALL(wrong == 0, "%d words were not there yet", wrong);
    TH_OK(dtr_node_barrier(world));
    TH_OK(dtr_free(world, own));
}
END_TEST

START_TEST(says_why_not) {
    static char plain[64];
    begin();
    char *own = take(4000), *odd, *ordinary = NULL;
    TH_IS(dtr_alloc(world, cpu, DTR_MEM_DEFAULT, 64, (void **)&ordinary), DTR_OK);
    odd = take(me == 0 ? 5000 : 6000);
    TH_OK(dtr_node_barrier(world));
    refused(plain, me, "lies in no block");
    refused(NULL, 0, "lies in no block");
    refused(ordinary, me, "lies in no block");
    refused(own + 4000, me, "lies in no block");
    refused(own, n, "the ranks of this node are 0 to");
    refused(own, -1, "local_rank is -1");
    TH_CHECK(dtr_peer_pointer(NULL, own, 0) == NULL, "no world: not refused");
    TH_CHECK(dtr_peer_pointer(world, own + 3999, me) == own + 3999, "the last byte");
    TH_CHECK(dtr_peer_pointer(world, odd, me) == odd, "the own one has its own size");
    if (n > 1) {
        refused(odd, me == 0 ? 1 : 0, me == 0 ? "5000 bytes here and 6000" : "6000 bytes here");
    }
    TH_OK(dtr_node_barrier(world));
    if (me == n - 1) {
        TH_IS(dtr_free(world, own), DTR_OK);
        refused(own, me, "lies in no block");
    }
    TH_OK(dtr_node_barrier(world));
    if (me != n - 1) {
        refused(own, n - 1, "has freed it");
        TH_IS(dtr_free(world, own), DTR_OK);
    }
    TH_OK(dtr_free(world, odd));
    TH_OK(dtr_free(world, ordinary));
}
END_TEST

/* A rank that has not allocated yet has none, and a later one of its is not taken for it. */
START_TEST(needs_the_same_number) {
    begin();
    void *own = me == 0 ? take(8192) : NULL;
    TH_OK(dtr_node_barrier(world));
    for (int r = 1; r < n && me == 0; r++) {
        refused(own, r, "not allocated it yet");
    }
    TH_OK(dtr_node_barrier(world));
    own = me == 0 ? own : take(8192);
    void *failed = NULL; /* a call that fails counts, too */
    TH_IS(dtr_alloc(world, cpu, DTR_MEM_SHARED, PTRDIFF_MAX, &failed), DTR_ERR_NOMEM);
    int *second = take(100);
    *second = me;
    TH_OK(dtr_node_barrier(world));
    for (int r = 0; r < n; r++) {
        const int *theirs = dtr_peer_pointer(world, second, r);
        TH_CHECK(dtr_peer_pointer(world, own, r) != NULL, "%s", dtr_last_error_message());
        TH_CHECK(theirs != NULL && *theirs == r, "the second block of %d is another's", r);
    }
    TH_OK(dtr_node_barrier(world));
    TH_OK(dtr_free(world, second));
    TH_OK(dtr_free(world, own));
}
END_TEST

/* Many blocks, which every rank gives back in an order of its own: of two thirds of them nothing is
 * found any more, of the others the right place. */
START_TEST(keeps_many_apart) {
    enum { BLOCKS = 700 };
    begin();
    int *own[BLOCKS], wrong = 0;
    for (int i = 0; i < BLOCKS; i++) {
        own[i] = take(sizeof(int) * (size_t)(1 + i % 5));
        *own[i] = 10000 * me + i;
    }
    TH_OK(dtr_node_barrier(world));
    for (int k = 0; k < BLOCKS; k++) { /* 11 and 700 have no common factor */
        const int i = (k * 11 + me) % BLOCKS;
        if ((i + me) % 3 != 0) {
            TH_IS(dtr_free(world, own[i]), DTR_OK);
            own[i] = NULL;
        }
    }
    TH_OK(dtr_node_barrier(world));
    for (int i = 0; i < BLOCKS; i++) {
        for (int r = 0; r < n && own[i] != NULL; r++) {
            const int *theirs = dtr_peer_pointer(world, own[i], r);
            const bool there = (i + r) % 3 == 0;
            wrong += there != (theirs != NULL) || (there && *theirs != 10000 * r + i);
        }
    }
    TH_ALL(wrong == 0, "%d blocks are not what they should be", wrong);
    TH_OK(dtr_node_barrier(world));
    for (int i = 0; i < BLOCKS; i++) {
        TH_IS(dtr_free(world, own[i]), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

/* Pages that have become the owner's alone are no peer's any more. */
START_TEST(forgets_private_pages) {
    begin();
    int *own = take(3 * 4096), *other = take(4096), where = 0;
    uint64_t offset = 0;
    *own = *other = me;
    TH_ALL(dtr__arena_find(world, own, 3 * 4096, &where, &offset), "not in an arena");
    if (me == 0) {
        TH_CHECK(dtr__arena_keep(world, offset + 4096, 64), "no private page");
        TH_CHECK(dtr_peer_pointer(world, own, 0) == own, "the own block");
    }
    TH_OK(dtr_node_barrier(world));
    for (int r = 0; r < n; r++) {
        const int *theirs = dtr_peer_pointer(world, own, r),
                  *there = dtr_peer_pointer(world, other, r);
        TH_CHECK((theirs != NULL) == (r != 0 || me == 0), "local rank %d: %p", r,
                 (const void *)theirs);
        TH_CHECK(there != NULL && *there == r, "the other block of %d", r);
    }
    TH_OK(dtr_node_barrier(world));
    TH_OK(dtr_free(world, other));
    TH_OK(dtr_free(world, own));
}
END_TEST

/* DTR_MEM_SHARED gives plain memory then, and a rank has its own only. */
START_TEST(without_shared_memory) {
    begin();
    dtr__arena *arena = world->memory.arena;
    world->memory.arena = NULL;
    int *own = take(100);
    TH_CHECK(dtr_peer_pointer(world, own + 3, me) == own + 3, "the own block");
    if (n > 1) {
        refused(own, (me + 1) % n, "cannot share memory");
    }
    TH_IS(dtr_free(world, own), DTR_OK);
    world->memory.arena = arena;
    TH_OK(dtr_node_barrier(world));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "node", 300);
    th_add(tc, waits_for_the_last, 1, 0);
    th_add(tc, is_listed_nowhere, 1, 0);
    th_add(tc, has_the_worlds_limit, 2, 0);
    th_add(tc, reads_and_writes_in_place, 1, 0);
    th_add(tc, orders_stores, 1, 0);
    th_add(tc, says_why_not, 1, 0);
    th_add(tc, needs_the_same_number, 1, 0);
    th_add(tc, keeps_many_apart, 1, 0);
    th_add(tc, forgets_private_pages, 1, 0);
    th_add(tc, without_shared_memory, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "peer_pointer", make);
}
