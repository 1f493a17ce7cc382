/* DTR_DEBUG=detail on device memory, on the stand-ins: collectives wait for all their ranks and are
 * compared before data moves, the results are those of the other levels, and groups that are used
 * in different orders are named; collectives:DBG4, DBG5, DBG6, DBG10, groups:NEW36. */
#include <stdio.h>
#include <string.h>

#include "control/vote.h"
#include "core/team.h"
#include "nccl_data.h"
#include "settings.h"

/* A world at this level. */
static dtr_world *world_at(const char *level) {
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_DEBUG", level);
    TH_AGREE();
    return w;
}

static void end_world(dtr_world *w) {
    th_barrier();
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}

static void untouched(dtr_buffer b, float value) {
    check(b, value, 1, "untouched");
}

/* DBG5, DBG6, DBG9: what one rank calls otherwise is named with both sites, and no buffer is
 * touched. */
START_TEST(DBG5_before_data_moves) {
    enum { CASES = 6 };
    static const char *const field[CASES] = { "kind", "count", "dtype", "op", "root", "elements" };
    dtr_world *world = world_at("detail");
    bool odd = th_rank() == culprit();
    for (int i = 0; i < CASES; i++) {
        dtr_group *g = NULL;
        dtr_buffer in = filled(N, 1), out = filled(N, 2), part = in;
        size_t gives[8], takes[8];
        TH_IS(dtr_group_create(world, NULL, th_size(), NULL, &g), DTR_OK);
        allreduce_good(g);
        th_barrier(); /* or the fault may end it where nobody has seen its end yet */
        for (int r = 0; r < th_size(); r++) {
            gives[r] = takes[r] = 4;
        }
        gives[0] += odd && i == 5 ? 1 : 0;
        part.count = odd ? N - 1 : N;
        dtr_buffer ints = { in.data, N, odd ? DTR_I32 : DTR_F32, gpu };
        dtr_buffer to = { out.data, i == 1 ? part.count : N, i == 2 ? ints.dtype : DTR_F32, gpu };
        dtr_buffer some = { in.data, 4 * (size_t)th_size(), DTR_F32, gpu }, rest = some;
        some.count += odd && i == 5 ? 1 : 0;
        rest.data = out.data;
        dtr_status s = i == 0 && odd ? dtr_broadcast(g, out, 0, NULL, NULL)
                       : i == 1      ? dtr_allreduce(g, part, to, DTR_SUM, NULL, NULL)
                       : i == 2      ? dtr_allreduce(g, ints, to, DTR_SUM, NULL, NULL)
                       : i == 3 ? dtr_allreduce(g, in, out, odd ? DTR_MAX : DTR_SUM, NULL, NULL)
                       : i == 4 ? dtr_broadcast(g, out, odd ? 1 : 0, NULL, NULL)
                       : i == 5 ? dtr_alltoallv(g, some, gives, rest, takes, NULL, NULL)
                                : dtr_allreduce(g, in, out, DTR_SUM, NULL, NULL);
        bool aside = i == 5 && !odd && th_rank() != 0; /* no end of what differs */
        while (aside && dtr_group_status(g) == DTR_OK) {
            th_sleep(0.001);
        }
        s = aside ? dtr_group_drain(g, -1) : s;
        s = aside ? dtr_allreduce(g, in, in, DTR_SUM, NULL, NULL) : s;
        TH_CHECK(s == DTR_ERR_MISMATCH, "case %d: %s", i, dtr_status_name(s));
        TH_MESSAGE(field[i]);
        TH_MESSAGE("No data was moved");
        const char *site = strstr(dtr_last_error_message(), "(rank ");
        site = i == 5 ? dtr_last_error_message() : site;
        TH_CHECK(site != NULL && strstr(site, "nccl_detail.c:") != NULL, "sites in: %s",
                 dtr_last_error_message());
        untouched(in, 1);
        if (!aside) {
            untouched(out, 2);
        }
        end_group(g);
        drop(in);
        drop(out);
        TH_AGREE();
    }
    end_world(world);
}
END_TEST

/* DBG4: who does not come is named, together with the operation. */
START_TEST(DBG4_one_rank_skips) {
    dtr_world *world = world_at("detail");
    dtr_group *g = dtr_world_group(world);
    dtr_buffer b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    char who[64];
    allreduce_good(g);
    th_barrier(); /* or the limit may end it too */
    o.timeout_s = 0.5;
    if (th_rank() != culprit()) {
        TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, NULL), DTR_ERR_TIMEOUT);
        snprintf(who, sizeof who, "rank %d", culprit());
        TH_MESSAGE("allreduce #2");
        TH_MESSAGE(who);
        untouched(b, 1);
    }
    th_barrier();
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_ERR_TIMEOUT);
    drop(b);
    end_world(world);
}
END_TEST

/* Everything that a rank can see of some operations. */
typedef struct seen {
    dtr_status status[16];
    uint64_t seq[16];
    float sum;
    int n;
} seen;

static void note(seen *s, dtr_group *g, dtr_status status) {
    s->status[s->n] = status;
    s->seq[s->n++] = dtr_group_seq(g);
}

static void work_at(const char *level, seen *s) {
    dtr_world *world = world_at(level);
    dtr_group *g = dtr_world_group(world);
    int next = (th_rank() + 1) % th_size(), before = (th_rank() + th_size() - 1) % th_size();
    dtr_buffer a = filled(N, (float)th_rank()), b = filled(N, 2), c = filled(N, 3), none = a;
    dtr_work *w = NULL;
    float *h = malloc(N * sizeof *h);
    none.count = 0;
    dtr_p2p ring[] = { { true, a, next, 0 }, { false, b, before, 0 } };
    note(s, g, dtr_allreduce(g, a, a, DTR_SUM, NULL, NULL));
    note(s, g, dtr_allreduce(g, none, none, DTR_SUM, NULL, NULL));
    note(s, g, dtr_allreduce(g, a, a, DTR_MAX, NULL, &w));
    note(s, g, dtr_work_synchronize(w, -1));
    TH_IS(dtr_work_release(w), DTR_OK);
    note(s, g, dtr_broadcast(g, b, 0, NULL, NULL));
    note(s, g, dtr_broadcast(g, b, 99, NULL, NULL));
    note(s, g, dtr_batch_p2p(g, ring, 2, NULL, NULL));
    note(s, g, dtr_coalesce_begin(g));
    note(s, g, dtr_allreduce(g, c, c, DTR_SUM, NULL, NULL));
    if (th_rank() == 0) { /* who is no end of it gives nothing */
        note(s, g, dtr_send(g, a, 1, 0, NULL, NULL));
    } else if (th_rank() == 1) {
        note(s, g, dtr_recv(g, b, 0, 0, NULL, NULL));
    }
    note(s, g, dtr_coalesce_end(g, NULL));
    note(s, g, dtr_barrier(g, NULL, NULL));
    get(h, b);
    for (int i = 0; i < N; i++) {
        s->sum += h[i];
    }
    free(h);
    drop(a);
    drop(b);
    drop(c);
    end_world(world);
}

/* DBG10: results, statuses and numbers are those of the other levels. */
START_TEST(DBG10_same_at_every_level) {
    seen off = { .n = 0 }, detail = { .n = 0 };
    work_at("off", &off);
    work_at("detail", &detail);
    TH_CHECK(off.n == detail.n && off.sum == detail.sum, "%d calls and %d, sums %g and %g", off.n,
             detail.n, (double)off.sum, (double)detail.sum);
    for (int i = 0; i < off.n; i++) {
        TH_CHECK(off.status[i] == detail.status[i] && off.seq[i] == detail.seq[i],
                 "call %d: %s at #%d, and at detail %s at #%d", i, dtr_status_name(off.status[i]),
                 (int)off.seq[i], dtr_status_name(detail.status[i]), (int)detail.seq[i]);
    }
    TH_AGREE();
}
END_TEST

/* NEW36: two groups at once are fine where all ranks call them in one order; the other order ends
 * both, on all ranks, with both call sites, long before the limit. */
START_TEST(NEW36_order_of_two_groups) {
    dtr_world *world = world_at("detail");
    dtr_group *g[2] = { NULL, NULL };
    dtr_buffer b[2] = { filled(N, 1), filled(N, 2) };
    dtr_work *w[2] = { NULL, NULL };
    dtr_status s[2];
    bool other = th_rank() == culprit();
    for (int i = 0; i < 2; i++) {
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        o.name = i == 0 ? "first" : "second";
        TH_IS(dtr_group_create(world, NULL, th_size(), &o, &g[i]), DTR_OK);
        allreduce_good(g[i]);
    }
    for (int turn = 0; turn < 20; turn++) {
        for (int i = 0; i < 2; i++) {
            TH_IS(dtr_allreduce(g[i], b[i], b[i], DTR_MAX, NULL, &w[i]), DTR_OK);
        }
        for (int i = 1; i >= 0; i--) {
            TH_IS(dtr_work_synchronize(w[i], -1), DTR_OK);
            TH_IS(dtr_work_release(w[i]), DTR_OK);
        }
    }
    TH_AGREE();
    for (int k = 0; k < 2; k++) {
        int i = other ? 1 - k : k;
        w[i] = NULL;
        s[k] = dtr_allreduce(g[i], b[i], b[i], DTR_SUM, NULL, &w[i]);
        TH_CHECK(s[k] == DTR_ERR_MISMATCH, "call %d: %s", k, dtr_status_name(s[k]));
        TH_MESSAGE("different orders");
        TH_MESSAGE("group 'first'");
        TH_MESSAGE("group 'second'");
        const char *site = strstr(dtr_last_error_message(), "called at nccl_detail.c:");
        TH_CHECK(site != NULL && strstr(site + 1, "called at nccl_detail.c:") != NULL,
                 "two sites in: %s", dtr_last_error_message());
        TH_IS(dtr_work_release(w[i]), DTR_OK);
    }
    for (int i = 0; i < 2; i++) {
        untouched(b[i], (float)i + 1);
        end_group(g[i]);
        drop(b[i]);
    }
    allreduce_good(dtr_world_group(world));
    end_world(world);
}
END_TEST

/* NEW36: once a member has said what breaks a group, nothing is launched on it, whoever comes. */
START_TEST(NEW36_not_after_a_failure) {
    dtr_world *world = world_at("detail");
    dtr_group *g = NULL;
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_buffer b = filled(N, 1);
    o.name = "told";
    TH_IS(dtr_group_create(world, NULL, th_size(), &o, &g), DTR_OK);
    allreduce_good(g);
    th_barrier(); /* or it may end that too */
    dtr__failure_record v = { .uid = g->uid,
                              .status = DTR_ERR_MISMATCH,
                              .text = "what rank 0 has found" };
    TH_CHECK(dtr__failure_record_put(world, &v), "no failure records");
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_ERR_MISMATCH);
    TH_MESSAGE("what rank 0 has found");
    untouched(b, 1);
    end_group(g);
    drop(b);
    end_world(world);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl detail", 110);
    th_add(tc, DBG5_before_data_moves, 2, 0);
    th_add(tc, DBG4_one_rank_skips, 2, 0);
    th_add(tc, DBG10_same_at_every_level, 2, 0);
    th_add(tc, NEW36_order_of_two_groups, 2, 0);
    th_add(tc, NEW36_not_after_a_failure, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nccl detail", make);
}
