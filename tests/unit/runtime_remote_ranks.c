/* The file in which a rank answers what dtr-top asks of the ranks of other hosts: a reader takes it
 * whole, or not at all. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "diagnosis/remote_ranks.h"
#include "unit.h"

enum { RANKS = 2, WORLD = 5, JOB = 77 };

static char recording[64], answer[64];

static dtr__remote_ranks *some(size_t *nbytes) {
    *nbytes = sizeof(dtr__remote_ranks) + RANKS * sizeof(dtr__remote_rank);
    dtr__remote_ranks *all = calloc(1, *nbytes);
    ck_assert_ptr_nonnull(all);
    all->magic = DTR__REMOTE_RANKS_MAGIC;
    all->job_id = JOB;
    all->n = RANKS;
    all->answered = 3;
    for (int i = 0; i < RANKS; i++) {
        all->rank[i].rank = i + 1;
        memset(all->rank[i].host, 'h', sizeof all->rank[i].host);
        memset(all->rank[i].report.doing, 'd', sizeof all->rank[i].report.doing);
        memset(all->rank[i].report.called.site, 's', sizeof all->rank[i].report.called.site);
    }
    return all;
}

static dtr__remote_ranks *load(const void *bytes, size_t nbytes) {
    FILE *to = fopen(answer, "w");
    ck_assert_ptr_nonnull(to);
    ck_assert_uint_eq(fwrite(bytes, 1, nbytes, to), nbytes);
    ck_assert_int_eq(fclose(to), 0);
    return dtr__remote_ranks_load(recording, JOB, WORLD);
}

static void begin(void) {
    char folder[32] = "/tmp/dtr-remote-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(recording, sizeof recording, "%s/r.0.rec", folder);
    snprintf(answer, sizeof answer, "%s/r.0.remote", folder);
}

static void end(void) {
    (void)unlink(answer);
    *strrchr(answer, '/') = '\0';
    ck_assert_int_eq(rmdir(answer), 0);
}

START_TEST(a_good_one) {
    size_t nbytes;
    dtr__remote_ranks *all = some(&nbytes), *got = load(all, nbytes);
    ck_assert_ptr_nonnull(got);
    ck_assert_uint_eq(got->n, RANKS);
    ck_assert_uint_eq(got->answered, 3);
    for (int i = 0; i < RANKS; i++) { /* texts that do not end are ended */
        ck_assert_int_eq(got->rank[i].rank, i + 1);
        ck_assert_uint_eq(strlen(got->rank[i].host), sizeof got->rank[i].host - 1);
        ck_assert_uint_eq(strlen(got->rank[i].report.doing), DTR__REPORT_TEXT - 1);
        ck_assert_uint_eq(strlen(got->rank[i].report.called.site),
                          sizeof got->rank[i].report.called.site - 1);
    }
    free(got);
    free(all);
}
END_TEST

START_TEST(damaged_ones) {
    enum { CASES = 12 };
    for (int i = 0; i < CASES; i++) {
        size_t nbytes;
        dtr__remote_ranks *all = some(&nbytes);
        all->magic += i == 0;
        all->job_id += i == 1;
        all->n += i == 2;
        all->now_ns -= i == 3;
        all->rank[1].rank = i == 4 ? WORLD : i == 5 ? -1 : 2;
        all->rank[1].node = i == 6 ? WORLD : 0;
        all->rank[0].report.n_groups = i == 7 ? DTR__REPORT_GROUPS + 1 : 0;
        all->rank[0].report.since_s = i == 10 ? (double)NAN : 0;
        all->rank[1].report.rates.gb_per_s = i == 11 ? (double)INFINITY : 0;
        nbytes = i == 8 ? nbytes - 1 : i == 9 ? 0 : nbytes;
        ck_assert_msg(load(all, nbytes) == NULL, "case %d was taken", i);
        free(all);
    }
}
END_TEST

START_TEST(none_and_a_link) {
    size_t nbytes;
    dtr__remote_ranks *all = some(&nbytes), *got;
    char other[80];
    ck_assert_ptr_null(dtr__remote_ranks_load(recording, JOB, WORLD));
    got = load(all, nbytes);
    ck_assert_ptr_nonnull(got);
    free(got);
    snprintf(other, sizeof other, "%s.other", answer);
    ck_assert_int_eq(rename(answer, other), 0);
    ck_assert_int_eq(symlink(other, answer), 0);
    ck_assert_ptr_null(dtr__remote_ranks_load(recording, JOB, WORLD));
    (void)unlink(other);
    free(all);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("file");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_add_test(tc, a_good_one);
    tcase_add_test(tc, damaged_ones);
    tcase_add_test(tc, none_and_a_link);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("remote ranks", make);
}
