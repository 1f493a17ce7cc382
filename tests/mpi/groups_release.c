/* Releasing groups: a member lets go of one without waiting for the others. */
#include <malloc.h>
#include <stdatomic.h>

#include <dtr/mpi.h>

#include "core/team.h"
#include "groups_common.h"
#include "resident.h"
#include "world/world.h"

static dtr_status sum(dtr_group *g, int64_t in, int64_t *out) {
    return dtr_allreduce(g, dtr_cpu(&in, 1, DTR_I64), dtr_cpu(out, 1, DTR_I64), DTR_SUM, NULL,
                         NULL);
}

static void good(dtr_group *g) {
    int64_t out = 0;
    TH_IS(sum(g, 1, &out), DTR_OK);
    TH_CHECK(out == dtr_group_size(g), "%lld members", (long long)out);
}

static dtr_group *all_ranks(double timeout_s, const char *name) {
    dtr_group_options o = options(timeout_s, name);
    return made(NULL, th_size(), &o);
}

static bool is_last(void) {
    return th_rank() == th_size() - 1;
}

/* Groups that are not taken down here although all members have let go of them: none remain once
 * each rank has been told. */
static int parked(void) {
    return atomic_load(&th_world()->groups->n_parked);
}

static void all_gone(void) {
    const double end = th_now() + 30;
    while (parked() > 0 && th_now() < end) {
        TH_IS(dtr_world_progress(th_world()), DTR_OK);
    }
    TH_CHECK(parked() == 0, "%d groups are left", parked());
    TH_AGREE();
}

/* ---- handles ---- */

START_TEST(handles) {
    dtr_group *g = all_ranks(0, "handles"), *h = UNTOUCHED;
    dtr_group_info info = DTR_GROUP_INFO_INIT;
    const int count = dtr_world_group_count(th_world());
    good(g);
    TH_IS(dtr_group_release(NULL), DTR_OK);
    TH_IS(dtr_group_release(dtr_world_group(th_world())), DTR_ERR_ARG);
    TH_MESSAGE("dtr_world_destroy");
    TH_IS(dtr_group_release(g), DTR_OK);
    TH_IS(dtr_group_release(g), DTR_ERR_STATE);
    TH_IS(dtr_group_destroy(g), DTR_ERR_STATE);
    TH_CHECK(dtr_group_rank(g) == -1 && dtr_group_size(g) == -1 && dtr_group_seq(g) == 0 &&
                 dtr_group_world_rank(g, 0) == -1 && dtr_group_name(g)[0] == '\0',
             "queries of a released group");
    TH_IS(dtr_group_get_info(g, &info), DTR_ERR_STATE);
    TH_IS(dtr_group_status(g), DTR_ERR_STATE);
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_ERR_STATE);
    TH_IS(dtr_group_split(g, 0, 0, NULL, &h), DTR_ERR_STATE);
    TH_CHECK(h == UNTOUCHED, "output touched");
    TH_CHECK(dtr_world_group_count(th_world()) == count - 1, "still counted");
    TH_CHECK(dtr_world_find_group(th_world(), "handles") == NULL, "still found");
    TH_AGREE();
    all_gone();
    TH_IS(dtr_group_status(g), DTR_ERR_STATE);
    TH_AGREE();
}
END_TEST

START_TEST(names_and_tags) {
    dtr_group *g = NULL;
    for (int i = 0; i < 5; i++) {
        g = all_ranks(0, "again");
        good(g);
        TH_IS(dtr_group_release(g), DTR_OK);
    }
    dtr_group_options o = options(0, NULL);
    o.tag = "shared";
    g = made(NULL, th_size(), &o);
    TH_CHECK(made(NULL, th_size(), &o) == g, "another group");
    TH_IS(dtr_group_release(g), DTR_OK); /* one reference of two */
    good(g);
    TH_IS(dtr_group_release(g), DTR_OK);
    TH_IS(dtr_group_status(g), DTR_ERR_STATE);
    dtr_group *h = made(NULL, th_size(), &o);
    TH_CHECK(h != g, "the released group was found");
    good(h);
    TH_IS(dtr_group_release(h), DTR_OK);
    TH_AGREE();
    all_gone();
}
END_TEST

/* ---- orders ---- */

START_TEST(opposite_orders) {
    enum { GROUPS = 6 };
    dtr_group *g[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        g[i] = all_ranks(0, NULL);
        good(g[i]);
    }
    for (int i = 0; i < GROUPS; i++) {
        TH_IS(dtr_group_release(g[th_rank() % 2 == 0 ? i : GROUPS - 1 - i]), DTR_OK);
    }
    TH_AGREE();
    all_gone();
    good(th_group());
    TH_AGREE();
}
END_TEST

/* Each rank is in some of them and lets go of its own in an order of its own, while others are
 * being made. */
START_TEST(overlapping_groups) {
    enum { GROUPS = 24 };
    dtr_group *g[GROUPS] = { NULL };
    int list[16];
    for (int i = 0; i < GROUPS; i++) {
        const int n = 1 + (i * 5) % th_size();
        for (int j = 0; j < n; j++) {
            list[j] = (i + j) % th_size();
        }
        g[i] = made(list, n, NULL);
        if (g[i] != NULL) {
            good(g[i]);
        }
        for (int k = 0; k <= i && i % 4 == 3; k++) {
            const int which = (k * 5 + th_rank()) % (i + 1);
            TH_IS(dtr_group_release(g[which]), DTR_OK);
            g[which] = NULL;
        }
    }
    for (int i = 0; i < GROUPS; i++) {
        TH_IS(dtr_group_release(g[i]), DTR_OK);
    }
    TH_AGREE();
    all_gone();
    good(th_group());
    TH_AGREE();
}
END_TEST

/* ---- works ---- */

START_TEST(works_go_on) {
    enum { WORKS = 8, LARGE = 200000 };
    static int64_t block[LARGE];
    dtr_group *g = all_ranks(0, NULL);
    dtr_work *w[WORKS], *sent = NULL;
    int64_t in = th_rank() + 1, x[WORKS];
    const int64_t want = (int64_t)th_size() * (th_size() + 1) / 2;
    for (int i = 0; i < WORKS; i++) {
        if (th_rank() > 0) {
            th_sleep(i == 0 ? 0.05 * th_rank() : 0);
        }
        w[i] = NULL;
        TH_IS(dtr_allreduce(g, dtr_cpu(&in, 1, DTR_I64), dtr_cpu(&x[i], 1, DTR_I64), DTR_SUM, NULL,
                            &w[i]),
              DTR_OK);
    }
    if (th_size() > 1 && th_rank() == 0) {
        block[LARGE - 1] = 7;
        TH_IS(dtr_send(g, dtr_cpu(block, LARGE, DTR_I64), 1, 4, NULL, &sent), DTR_OK);
    }
    if (th_rank() != 1) {
        TH_IS(dtr_group_release(g), DTR_OK);
    }
    for (int i = 0; i < WORKS; i++) {
        TH_IS(dtr_work_wait(w[i], -1), DTR_OK);
        TH_CHECK(x[i] == want, "work %d: %lld", i, (long long)x[i]);
        TH_IS(dtr_work_release(w[i]), DTR_OK);
    }
    if (th_rank() == 1) {
        TH_IS(dtr_recv(g, dtr_cpu(block, LARGE, DTR_I64), 0, 4, NULL, NULL), DTR_OK);
        TH_CHECK(block[LARGE - 1] == 7, "%lld", (long long)block[LARGE - 1]);
        TH_IS(dtr_group_release(g), DTR_OK);
    }
    if (sent != NULL) {
        TH_IS(dtr_work_wait(sent, -1), DTR_OK);
        TH_IS(dtr_work_release(sent), DTR_OK);
    }
    TH_AGREE();
    all_gone();
}
END_TEST

static _Atomic int called_back;
static void release_group(dtr_work *w, dtr_status s, void *group) {
    (void)w;
    atomic_fetch_add(&called_back, s == DTR_OK && dtr_group_release(group) == DTR_OK);
}

START_TEST(from_a_callback) {
    dtr_group *g = all_ranks(0, NULL);
    dtr_work *w = NULL;
    int64_t x = 1;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_I64);
    atomic_store(&called_back, 0);
    th_barrier();
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, &w), DTR_OK);
    TH_IS(dtr_work_on_complete(w, release_group, g), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_CHECK(atomic_load(&called_back) == 1, "called %d times", atomic_load(&called_back));
    TH_AGREE();
    all_gone();
}
END_TEST

START_TEST(open_scope) {
    dtr_group *g = all_ranks(0, NULL);
    int64_t x = 1;
    dtr_work *w = NULL;
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_allreduce(g, dtr_cpu(&x, 1, DTR_I64), dtr_cpu(&x, 1, DTR_I64), DTR_SUM, NULL, &w),
          DTR_OK);
    TH_IS(dtr_group_release(g), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_ERR_ABORTED);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
    all_gone();
}
END_TEST

/* ---- members that stay ---- */

static void named(void) {
    char who[32];
    snprintf(who, sizeof who, "rank %d", th_size() - 1);
    TH_MESSAGE("dtr_group_release");
    TH_MESSAGE(who);
}

/* The last rank lets go after three collectives; the others exchange messages, and call a fourth
 * one: in whatever way it is called, it ends long before its limit. */
static void stays(const char *how) {
    dtr_group *g = all_ranks(600, NULL);
    int64_t out = 0, x = th_rank();
    const th_start since = th_begin();
    dtr_status s = DTR_OK;
    dtr_work *w = NULL;
    const int n = th_size() - 1;
    for (int i = 0; i < 4 && s == DTR_OK; i++) {
        if (i == 3 && is_last()) {
            TH_IS(dtr_group_release(g), DTR_OK);
            th_barrier();
            break;
        }
        if (i == 3 && n > 1) {
            int64_t got = -1;
            TH_IS(dtr_send(g, dtr_cpu(&x, 1, DTR_I64), (th_rank() + 1) % n, 1, NULL, NULL), DTR_OK);
            TH_IS(dtr_recv(g, dtr_cpu(&got, 1, DTR_I64), (th_rank() + n - 1) % n, 1, NULL, NULL),
                  DTR_OK);
            TH_CHECK(got == (th_rank() + n - 1) % n, "%lld", (long long)got);
        }
        if (i == 3) {
            th_barrier(); /* the first call breaks it, messages too */
        }
        if (i < 3 || strcmp(how, "blocking") == 0) {
            s = sum(g, 1, &out);
            TH_CHECK(i == 3 || (s == DTR_OK && out == th_size()), "%lld", (long long)out);
        } else if (strcmp(how, "asynchronous") == 0) {
            s = dtr_allreduce(g, dtr_cpu(&x, 1, DTR_I64), dtr_cpu(&out, 1, DTR_I64), DTR_SUM, NULL,
                              &w);
            s = s == DTR_OK ? dtr_work_wait(w, -1) : s;
            (void)dtr_work_release(w);
        } else if (strcmp(how, "split") == 0) {
            dtr_group *h = NULL;
            s = dtr_group_split(g, 0, 0, NULL, &h);
        } else { /* the root may be done at once: what it calls later is not */
            for (int k = 0; k < 10000 && s == DTR_OK; k++) {
                s = dtr_broadcast(g, dtr_cpu(&x, 1, DTR_I64), 0, NULL, NULL);
            }
        }
        if (i == 3) {
            TH_CHECK(s == DTR_ERR_MISMATCH, "%s: %s", how, dtr_status_name(s));
            named();
            TH_IS(dtr_group_status(g), DTR_ERR_MISMATCH);
            TH_IS(dtr_barrier(g, NULL, NULL), DTR_ERR_MISMATCH);
            TH_CHECK(th_in_time(since, 10), "%s: late", how);
            TH_IS(th_rank() == 0 ? dtr_group_destroy(g) : dtr_group_release(g), DTR_OK);
        }
    }
    TH_AGREE();
    all_gone();
    good(th_group());
    TH_AGREE();
}

START_TEST(a_collective_that_it_will_not_call) {
    stays("blocking");
    stays("asynchronous");
    stays("broadcast");
}
END_TEST

START_TEST(a_split_that_it_will_not_call) {
    stays("split");
}
END_TEST

/* Works of members that have let go themselves end with it too. */
START_TEST(works_that_cannot_end) {
    dtr_group *g = all_ranks(600, NULL);
    int64_t x = 1, y = 0;
    dtr_work *w = NULL;
    if (!is_last()) {
        TH_IS(dtr_allreduce(g, dtr_cpu(&x, 1, DTR_I64), dtr_cpu(&y, 1, DTR_I64), DTR_SUM, NULL, &w),
              DTR_OK);
    }
    th_barrier();
    TH_IS(dtr_group_release(g), DTR_OK);
    if (w != NULL) {
        TH_IS(dtr_work_wait(w, -1), DTR_ERR_MISMATCH);
        named();
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    th_barrier();
    TH_AGREE();
    all_gone();
    good(th_group());
    TH_AGREE();
}
END_TEST

START_TEST(a_broken_group) {
    dtr_group *g = all_ranks(600, NULL);
    if (th_rank() == 0) {
        TH_IS(dtr_group_abort(g, "enough"), DTR_OK);
    }
    TH_IS(dtr_group_release(g), DTR_OK);
    TH_AGREE();
    all_gone();
    g = all_ranks(600, NULL);
    if (!is_last()) { /* breaks while it is parked */
        TH_IS(dtr_group_release(g), DTR_OK);
    }
    th_barrier();
    if (is_last()) {
        TH_IS(dtr_group_abort(g, "enough"), DTR_OK);
        TH_IS(dtr_group_destroy(g), DTR_OK);
    }
    TH_AGREE();
    all_gone();
}
END_TEST

/* ---- with dtr_group_destroy ---- */

/* Who releases may go on with whatever follows; who destroys waits for all. */
static void mixed(int releasing) {
    dtr_group *g = all_ranks(600, NULL), *h = all_ranks(600, NULL);
    double came[2] = { 0 };
    good(g);
    good(h);
    if (th_rank() % 2 == releasing) {
        th_sleep(0.05);
        came[0] = th_now();
        TH_IS(dtr_group_release(g), DTR_OK);
        TH_IS(dtr_group_destroy(h), DTR_OK);
    } else {
        TH_IS(dtr_group_destroy(g), DTR_OK);
        came[1] = th_now();
        TH_IS(dtr_group_destroy(h), DTR_OK);
    }
    const double latest = th_latest(came[0]);
    TH_CHECK(came[1] == 0 || came[1] >= latest, "left before all had come");
    TH_AGREE();
    all_gone();
    good(th_group());
    TH_AGREE();
}

START_TEST(mixed_with_destroy) {
    for (int i = 0; i < 6; i++) {
        mixed(i % 2);
    }
}
END_TEST

/* One that never comes is named, and may let go later. */
START_TEST(destroy_has_a_limit) {
    dtr_group_options o = options(0.4, "limited");
    dtr_group *g = th_hasty_group(th_world(), &o);
    if (is_last()) {
        TH_IS(dtr_group_release(g), DTR_OK);
    } else if (th_rank() != 0) {
        TH_IS(dtr_group_destroy(g), DTR_ERR_TIMEOUT);
        TH_MESSAGE("rank 0 (world rank 0) has not let go of it");
    }
    th_barrier();
    if (th_rank() == 0) {
        TH_IS(dtr_group_release(g), DTR_OK);
    }
    TH_AGREE();
    all_gone();
    good(th_group());
    TH_AGREE();
}
END_TEST

/* ---- worlds ---- */

static _Atomic int n_lines;
static void count_line(void *arg, int level, const char *line) {
    (void)arg;
    (void)level;
    atomic_fetch_add(&n_lines, strstr(line, "was not destroyed") != NULL);
}

START_TEST(left_at_the_end_of_the_world) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    dtr_group *g[4];
    o.log_fn = count_line;
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_OK);
    for (int i = 0; i < 4; i++) {
        TH_IS(dtr_group_create(w, NULL, th_size(), NULL, &g[i]), DTR_OK);
        good(g[i]);
    }
    atomic_store(&n_lines, 0);
    TH_IS(dtr_group_release(g[th_rank() % 2]), DTR_OK);
    TH_IS(dtr_group_release(g[2]), DTR_OK);
    TH_IS(dtr_group_release(g[3 - 3 * (th_rank() % 2)]), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_CHECK(atomic_load(&n_lines) == 1, "%d warnings, of one group", atomic_load(&n_lines));
    TH_AGREE();
}
END_TEST

/* ---- memory ---- */

static long heap(void) {
    return (long)(mallinfo2().uordblks / 1024);
}

static int retired(void) {
    int n = 0;
    for (const dtr__retired *r = th_world()->groups->retired; r != NULL; r = r->next) {
        n++;
    }
    return n;
}

static void rounds(int n) {
    dtr_status s = DTR_OK;
    int64_t out = 0;
    for (int i = 0; i < n; i++) {
        dtr_group *g = NULL, *h = NULL;
        DTR_KEEP_FIRST(s, dtr_group_split(th_group(), 0, 0, NULL, &g));
        DTR_KEEP_FIRST(s, sum(g, 1, &out));
        if (i % 2 == 0) {
            DTR_KEEP_FIRST(s, dtr_group_split(th_group(), th_rank() % 2, 0, NULL, &h));
            DTR_KEEP_FIRST(s, sum(h, 1, &out));
        }
        DTR_KEEP_FIRST(s, dtr_group_release(th_rank() % 2 == 0 ? g : h));
        DTR_KEEP_FIRST(s, dtr_group_release(th_rank() % 2 == 0 ? h : g));
    }
    TH_CHECK(s == DTR_OK, "%s: %s", dtr_status_name(s), dtr_last_error_message());
    TH_AGREE();
    all_gone();
    th_barrier();
}

/* Handles that are gone are kept, but not all of them. */
START_TEST(memory_is_flat) {
    const char *asked = getenv("FLAT_ROUNDS");
    const int n = asked != NULL ? atoi(asked) : 400;
    rounds(800);
    const long before = heap();
    const size_t shared = dtr__arena_used(th_world());
    rounds(n);
    if (asked != NULL) {
        printf("rank %d: %d rounds: heap %+ld KiB\n", th_rank(), n, heap() - before);
    }
    TH_CHECK(heap() - before < 80, "the heap grew by %ld KiB", heap() - before);
    TH_CHECK(dtr__arena_used(th_world()) <= shared, "node-shared memory grew by %zd bytes",
             (ssize_t)(dtr__arena_used(th_world()) - shared));
    TH_CHECK(retired() <= 4, "%d groups have communicators left", retired());
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "groups_release", 300);
    th_add(tc, handles, 1, 0);
    th_add(tc, names_and_tags, 1, 0);
    th_add(tc, opposite_orders, 1, 0);
    th_add(tc, overlapping_groups, 1, 0);
    th_add(tc, works_go_on, 1, 0);
    th_add(tc, from_a_callback, 1, 0);
    th_add(tc, open_scope, 1, 0);
    th_add(tc, a_collective_that_it_will_not_call, 2, 0);
    th_add(tc, a_split_that_it_will_not_call, 2, 0);
    th_add(tc, works_that_cannot_end, 2, 0);
    th_add(tc, a_broken_group, 2, 0);
    th_add(tc, mixed_with_destroy, 1, 0);
    th_add(tc, destroy_has_a_limit, 3, 0);
    th_add(tc, left_at_the_end_of_the_world, 1, 0);
    th_add_measured(tc, memory_is_flat, 1, 3);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "groups_release", make);
}
