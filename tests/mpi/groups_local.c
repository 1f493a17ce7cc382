/* local_sync: groups made by their members alone. And what outsiders of any group are told. */
#include <unistd.h>

#include "groups_common.h"

static dtr_group_options local(double timeout_s) {
    dtr_group_options o = options(timeout_s, NULL);
    o.local_sync = true;
    return o;
}

static void sum_of_members(dtr_group *g) {
    int64_t in = 1, out = 0;
    TH_IS(
        dtr_allreduce(g, dtr_cpu(&in, 1, DTR_I64), dtr_cpu(&out, 1, DTR_I64), DTR_SUM, NULL, NULL),
        DTR_OK);
    TH_CHECK(out == dtr_group_size(g), "%lld members", (long long)out);
}

/* The outsider returns although the members have not come yet (STO14). */
START_TEST(NEW5_outsider_returns_at_once) {
    dtr_group_options o = local(0);
    bool member = th_rank() == 1 || th_rank() == 2;
    if (member) {
        th_barrier(); /* the outsiders come here when they have returned */
    }
    dtr_group *g = UNTOUCHED;
    TH_IS(dtr_group_create(th_world(), LIST(1, 2), &o, &g), DTR_OK);
    if (member) {
        sum_of_members(g);
    } else {
        th_barrier();
        TH_CHECK(g == NULL, "an outsider got a group");
        float x = 1;
        TH_IS(
            dtr_allreduce(g, dtr_cpu(&x, 1, DTR_F32), dtr_cpu(&x, 1, DTR_F32), DTR_SUM, NULL, NULL),
            DTR_NOT_MEMBER);
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* STO14: an outsider that is late holds up a normal creation, but none with local_sync. */
START_TEST(STO14_who_waits_for_whom) {
    for (int sync = 0; sync < 2; sync++) {
        dtr_group_options o = options(0, NULL);
        o.local_sync = sync;
        th_barrier();
        if (th_rank() == 0 && sync) {
            th_barrier(); /* the members come here with their group */
        } else if (th_rank() == 0) {
            th_sleep(0.2);
        }
        double came = th_now();
        dtr_group *g = made(LIST(1, 2), &o);
        double left = th_now();
        if (th_rank() != 0 && sync) {
            th_barrier();
        }
        double last = th_latest(th_rank() == 0 ? came : 0);
        bool member = th_rank() == 1 || th_rank() == 2;
        TH_CHECK(!member || (left >= last) == !sync, "local_sync %d: left %g s after rank 0 came",
                 sync, left - last);
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_AGREE();
    }
}
END_TEST

/* NEW6: only the members call, and every backend serves. */
START_TEST(NEW6_only_members_call) {
    const char *backends[] = { NULL, "cpu:mpi", "cpu:shm" };
    for (int i = 0; i < 3; i++) {
        dtr_group_options o = local(0);
        o.backend = backends[i];
        dtr_group *g = NULL;
        bool there = backends[i] == NULL || dtr_backend_available(th_world(), backends[i] + 4);
        if (there && (th_rank() == 1 || th_rank() == 2)) {
            g = made(LIST(1, 2), &o);
            sum_of_members(g);
        }
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_AGREE();
    }
}
END_TEST

START_TEST(NEW7_one_global_order_works) {
    dtr_group_options o = local(20);
    dtr_group *g[3];
    g[0] = made(LIST(0, 1), &o);
    g[1] = made(LIST(1, 2), &o);
    g[2] = made(LIST(0, 2), &o);
    for (int i = 0; i < 3; i++) {
        if (g[i] != NULL) {
            sum_of_members(g[i]);
        }
        TH_IS(dtr_group_destroy(g[i]), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

/* Every rank waits for the next one in a circle: the limit ends it, and says who is where. */
START_TEST(NEW7_crossed_order) {
    if (th_rank() < 3) {
        dtr_group_options o = local(1);
        const int circle[3][2] = { { 0, 1 }, { 1, 2 }, { 2, 0 } };
        dtr_group *g = UNTOUCHED;
        char missing[32];
        snprintf(missing, sizeof missing, "rank %d", (th_rank() + 1) % 3);
        TH_IS(dtr_group_create(th_world(), circle[th_rank()], 2, &o, &g), DTR_ERR_TIMEOUT);
        TH_MESSAGE(missing);
        TH_MESSAGE(th_rank() == 0 ? "{0,1}" : th_rank() == 1 ? "{1,2}" : "{2,0}");
        TH_CHECK(g == UNTOUCHED, "output touched");
    }
    th_barrier();
    TH_AGREE();
    dtr_group_options o = local(0);
    dtr_group *g = made(LIST(0, 1), &o); /* and it works afterwards */
    if (g != NULL) {
        sum_of_members(g);
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* Disjoint groups made at the same time take the same number; the next group of all takes the
 * largest number of anybody plus one (NEW13, NEW14). */
START_TEST(NEW13_counters_drift_and_meet_again) {
    dtr_group_options o = local(0);
    unsigned long next = next_number();
    dtr_group *a = NULL, *b = NULL, *all;
    if (th_rank() < 2) {
        a = made(LIST(0, 1), &o);
        b = made(LIST(0, 1), &o);
        TH_CHECK(is_named(b, next + 1), "named %s, want %lu", dtr_group_name(b), next + 1);
    } else if (th_rank() < 4) {
        a = made(LIST(3, 2), &o);
    }
    TH_CHECK(a == NULL || is_named(a, next), "named %s, want %lu", dtr_group_name(a), next);
    all = made(NULL, th_size(), NULL);
    TH_CHECK(is_named(all, next + 2), "named %s, want %lu", dtr_group_name(all), next + 2);
    TH_IS(dtr_group_destroy(all), DTR_OK);
    TH_IS(dtr_group_destroy(b), DTR_OK);
    TH_IS(dtr_group_destroy(a), DTR_OK);
    TH_AGREE();
}
END_TEST

/* T99: {0,1} and {2,3} at the same time: a pair gathers the values of its own two members. */
START_TEST(T99_pairs_gather) {
    dtr_group_options o = local(0);
    if (th_rank() < 4) {
        int pair = th_rank() / 2, first = 2 * pair;
        dtr_group *g = made(LIST(first, first + 1), &o);
        int64_t in[2] = { pair, th_rank() }, out[4] = { -1, -1, -1, -1 };
        TH_IS(dtr_allgather(g, dtr_cpu(in, 2, DTR_I64), dtr_cpu(out, 4, DTR_I64), NULL, NULL),
              DTR_OK);
        for (int i = 0; i < 2; i++) {
            TH_CHECK(out[2 * i] == pair && out[2 * i + 1] == first + i,
                     "member %d gave (%lld, %lld)", i, (long long)out[2 * i],
                     (long long)out[2 * i + 1]);
        }
        TH_IS(dtr_group_destroy(g), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

/* T98-T100 of the catalogue: the same pair twice is two groups, made by the pair alone. */
START_TEST(T100_same_members_twice) {
    dtr_group_options o = local(0);
    if (th_rank() < 2) {
        dtr_group *a = made(LIST(0, 1), &o), *b = made(LIST(0, 1), &o);
        TH_CHECK(a != b, "one group");
        int32_t got = 0, x = 7 + th_rank();
        dtr_work *w = NULL;
        int peer = 1 - th_rank();
        TH_IS(dtr_recv(a, dtr_cpu(&got, 1, DTR_I32), peer, 0, NULL, &w), DTR_OK);
        sum_of_members(b);
        bool done = true;
        TH_IS(dtr_work_test(w, &done), DTR_OK);
        TH_CHECK(!done, "a receive on one group met traffic of the other");
        TH_IS(dtr_barrier(b, NULL, NULL), DTR_OK); /* both have looked */
        dtr_work *sent = NULL;
        TH_IS(dtr_send(a, dtr_cpu(&x, 1, DTR_I32), peer, 0, NULL, &sent), DTR_OK);
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        TH_IS(dtr_work_wait(sent, -1), DTR_OK);
        TH_CHECK(got == 8 - th_rank(), "got %d", got);
        dtr_work_release(w);
        dtr_work_release(sent);
        TH_IS(dtr_group_destroy(a), DTR_OK);
        TH_IS(dtr_group_destroy(b), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

/* ---- NULL groups ---- */

static int lines_with(FILE *f, const char *word) {
    char line[1024];
    int n = 0;
    rewind(f);
    while (fgets(line, sizeof line, f) != NULL) {
        n += strstr(line, word) != NULL;
    }
    return n;
}

/* GRP2: quiet no-ops with one line per entry point and process, to stderr and without a rank
 * (ENV14), however often they are called. Run first: the warnings come once per process. */
START_TEST(GRP2_one_warning_per_entry_point) {
    FILE *captured = tmpfile();
    int kept = dup(STDERR_FILENO);
    fflush(stderr);
    dup2(fileno(captured), STDERR_FILENO);
    float x = 1, y = 2;
    dtr_buffer in = dtr_cpu(&x, 1, DTR_F32), out = dtr_cpu(&y, 1, DTR_F32);
    for (int i = 0; i < 10; i++) {
        dtr_work *w = (dtr_work *)UNTOUCHED;
        TH_IS(dtr_allreduce(NULL, in, out, DTR_SUM, NULL, &w), DTR_NOT_MEMBER);
        TH_CHECK(w == NULL, "work");
        TH_IS(dtr_broadcast(NULL, in, -5, NULL, NULL), DTR_NOT_MEMBER); /* before arguments */
        TH_IS(dtr_reduce(NULL, in, out, DTR_SUM, 0, NULL, NULL), DTR_NOT_MEMBER);
        TH_IS(dtr_allgather(NULL, in, out, NULL, NULL), DTR_NOT_MEMBER);
        TH_IS(dtr_scatter(NULL, in, out, 0, NULL, NULL), DTR_NOT_MEMBER);
        TH_IS(dtr_barrier(NULL, NULL, NULL), DTR_NOT_MEMBER);
        TH_IS(dtr_send(NULL, in, 0, 0, NULL, NULL), DTR_NOT_MEMBER);
        TH_IS(dtr_recv(NULL, in, 0, 0, NULL, NULL), DTR_NOT_MEMBER);
    }
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    TH_CHECK(x == 1 && y == 2, "a buffer was touched");
    const char *entries[] = { "dtr_allreduce", "dtr_broadcast", "dtr_reduce ", "dtr_allgather",
                              "dtr_scatter",   "dtr_barrier",   "dtr_send",    "dtr_recv" };
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        int n = lines_with(captured, entries[i]);
        TH_CHECK(n == 1, "%d lines about %s", n, entries[i]);
    }
    TH_CHECK(lines_with(captured, "[rank") == 0, "a line has a rank");
    fclose(captured);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "groups_local", 60);
    th_add(tc, GRP2_one_warning_per_entry_point, 1, 0);
    th_add(tc, NEW5_outsider_returns_at_once, 3, 0);
    th_add(tc, STO14_who_waits_for_whom, 3, 0);
    th_add(tc, NEW6_only_members_call, 3, 0);
    th_add(tc, NEW7_one_global_order_works, 3, 0);
    th_add(tc, NEW7_crossed_order, 3, 0);
    th_add(tc, NEW13_counters_drift_and_meet_again, 4, 0);
    th_add(tc, T99_pairs_gather, 4, 0);
    th_add(tc, T100_same_members_twice, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "groups_local", make);
}
