/* The monitored barrier (BAR7 to BAR16, T34). */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { MOST = 64 };

/* Everybody comes: OK, n_missing 0, the sequence stays, nobody leaves before all have entered. */
START_TEST(all_come) {
    uint64_t seq = dtr_group_seq(th_group());
    for (int late = 0; late < th_size(); late++) {
        int missing[MOST], n = 7;
        th_barrier();
        if (th_rank() == late) {
            th_sleep(0.1);
        }
        double came = th_now();
        TH_IS(dtr_monitored_barrier(th_group(), 20, true, missing, &n), DTR_OK);
        double left = th_now();
        TH_CHECK(n == 0, "n_missing is %d", n);
        TH_CHECK(left >= th_latest(came), "it left before rank %d came", late);
        TH_IS(dtr_monitored_barrier(th_group(), -1, false, NULL, NULL), DTR_OK);
        TH_AGREE();
    }
    TH_ALL(dtr_group_seq(th_group()) == seq, "the sequence moved");
}
END_TEST

static bool listed(const int *list, int n, int rank) {
    for (int i = 0; i < n; i++) {
        if (list[i] == rank) {
            return true;
        }
    }
    return false;
}

/* Calls on all ranks but the absent ones, which come when the others have failed and get the same
 * result. */
static void absent_once(const int *who, int n_who, bool wait_all, double limit) {
    int missing[MOST] = { -1 }, n = -1;
    bool here = !listed(who, n_who, th_rank());
    if (!here) {
        th_barrier();
    }
    TH_IS(dtr_monitored_barrier(th_group(), here ? limit : 600, wait_all, missing, &n),
          DTR_ERR_TIMEOUT);
    int want = wait_all && who[0] != 0 ? n_who : 1;
    TH_CHECK(n == want, "%d missing instead of %d", n, want);
    for (int i = 0; i < want && n == want; i++) {
        TH_CHECK(missing[i] == who[i], "missing[%d] is %d, not %d", i, missing[i], who[i]);
    }
    if (here) {
        TH_MESSAGE("monitored_barrier");
        th_barrier();
    }
}

static void absent(const int *who, int n_who, bool wait_all) {
    int missing[MOST] = { -1 }, n = -1;
    double limit = 0.3;
    do {
        absent_once(who, n_who, wait_all, limit);
    } while (th_patience(&limit));
    TH_CHECK(dtr_group_status(th_group()) == DTR_OK, "the group is broken");
    TH_AGREE();
    TH_IS(dtr_monitored_barrier(th_group(), 20, true, missing, &n), DTR_OK);
    TH_CHECK(n == 0, "the next one has n_missing %d", n);
    TH_AGREE();
    th_good_allreduce(th_group());
}

/* BAR8, BAR10, BAR15: any single rank but 0 absent. */
START_TEST(one_absent) {
    for (int who = 1; who < th_size(); who++) {
        absent(&who, 1, true);
    }
}
END_TEST

/* BAR16: rank 0 absent: the others report it, and it learns that. */
START_TEST(root_absent) {
    const int who[] = { 0 };
    absent(who, 1, true);
}
END_TEST

/* BAR9: ranks 1 and 3 absent: the lowest, or all. */
START_TEST(two_absent) {
    const int who[] = { 1, 3 };
    absent(who, 2, true);
    absent(who, 2, false);
}
END_TEST

/* BAR10: the earliest limit ends it for all, whoever has it. */
START_TEST(earliest_limit) {
    for (int hasty = 0; hasty < 2; hasty++) {
        double limit = 0.3;
        do {
            int missing[MOST], n = -1, gone = th_size() - 1;
            if (th_rank() == gone) {
                th_barrier();
            }
            TH_IS(dtr_monitored_barrier(th_group(), th_rank() == hasty ? limit : 600, true, missing,
                                        &n),
                  DTR_ERR_TIMEOUT);
            TH_CHECK(n == 1 && missing[0] == gone, "%d missing, first %d", n, missing[0]);
            if (th_rank() != gone) {
                th_barrier();
            }
        } while (th_patience(&limit));
        TH_AGREE();
    }
}
END_TEST

/* BAR15: a rank that has missed several calls gets their results one after the other. */
START_TEST(several_missed) {
    enum { CALLS = 3 };
    int gone = th_size() - 1;
    double limit = 0.2;
    do {
        if (th_rank() == gone) {
            th_barrier();
        }
        for (int i = 0; i < CALLS; i++) {
            int missing[MOST], n = -1;
            TH_IS(dtr_monitored_barrier(th_group(), limit, true, missing, &n), DTR_ERR_TIMEOUT);
            TH_CHECK(n == 1 && missing[0] == gone, "call %d: %d missing", i, n);
        }
        if (th_rank() != gone) {
            th_barrier();
        }
    } while (th_patience(&limit));
    TH_AGREE();
    TH_OK(dtr_monitored_barrier(th_group(), 20, true, NULL, NULL));
}
END_TEST

/* BAR13, COA4, ENV13 and arguments. */
START_TEST(arguments) {
    int n = 7;
    TH_IS(dtr_monitored_barrier(NULL, 1, true, NULL, &n), DTR_NOT_MEMBER);
    TH_CHECK(n == 7, "n_missing was written");
    TH_IS(dtr_monitored_barrier(th_group(), NAN, true, NULL, NULL), DTR_ERR_ARG);
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_monitored_barrier(th_group(), 1, true, NULL, NULL), DTR_ERR_STATE);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_ERR_STATE);
    TH_AGREE();
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.timeout_s = 0.3;
    dtr_group *g = th_hasty_group(th_world(), &o);
    if (th_size() > 1) {
        if (th_rank() == 0) {
            TH_IS(dtr_monitored_barrier(g, -1, true, NULL, &n), DTR_ERR_TIMEOUT);
            TH_CHECK(n == th_size() - 1, "%d missing", n);
        }
        th_barrier();
        if (th_rank() != 0) {
            TH_IS(dtr_monitored_barrier(g, -1, true, NULL, &n), DTR_ERR_TIMEOUT);
        }
    }
    TH_AGREE();
    (void)dtr_group_destroy(g); /* its limit is short */
    th_barrier();
}
END_TEST

/* Other groups of equal members, one after the other while a barrier of the first is under way. */
START_TEST(two_groups) {
    dtr_group *g = NULL;
    int missing[MOST], n = -1;
    TH_OK(dtr_group_split(th_group(), 0, -th_rank(), NULL, &g));
    if (th_rank() % 2 == 0) {
        TH_IS(dtr_monitored_barrier(g, 0.3, true, missing, &n),
              th_size() == 1 ? DTR_OK : DTR_ERR_TIMEOUT);
    }
    TH_AGREE();
    TH_OK(dtr_monitored_barrier(th_group(), 20, true, NULL, NULL));
    if (th_rank() % 2 != 0) {
        TH_IS(dtr_monitored_barrier(g, 20, true, missing, &n), DTR_ERR_TIMEOUT);
    }
    TH_AGREE();
    TH_OK(dtr_monitored_barrier(g, 20, true, NULL, NULL));
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* Asynchronous work of the group goes on meanwhile. */
START_TEST(work_goes_on) {
    int32_t x = 1, y = 0;
    dtr_work *w;
    TH_IS(dtr_allreduce(th_group(), dtr_cpu(&x, 1, DTR_I32), dtr_cpu(&y, 1, DTR_I32), DTR_SUM, NULL,
                        &w),
          DTR_OK);
    TH_IS(dtr_monitored_barrier(th_group(), 20, true, NULL, NULL), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_ALL(y == th_size(), "result %d", y);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "monitored barrier", 60);
    th_add(tc, all_come, 0, 0);
    th_add(tc, one_absent, 2, 0);
    th_add(tc, root_absent, 2, 0);
    th_add(tc, two_absent, 4, 0);
    th_add(tc, earliest_limit, 3, 0);
    th_add(tc, several_missed, 2, 0);
    th_add(tc, arguments, 0, 0);
    th_add(tc, two_groups, 0, 0);
    th_add(tc, work_goes_on, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "engine_monitor", make);
}
