/* The flight recorder's file and its reader (reliability: P1, P7, P12, O14, S6, T20, FI24), without
 * MPI.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "recording_unit.h"

/* Two groups, one with evenly spaced members; ten operations, the last not finished. */
static void record_some(dtr_world *w) {
    static const int even[] = { 0, 2, 4 }, odd[] = { 4, 2, 1 };
    dtr__rec_names(w, kind_name, 3, op_name, 2);
    dtr__rec_group_add(w, 1, 901, "even", 1, 3, even);
    dtr__rec_group_add(w, 2, 902, "odd", 1, 3, odd);
    for (uint64_t i = 1; i <= 10; i++) {
        dtr__record r = { .group = 2,
                          .seq = i,
                          .kind = 2,
                          .root_or_peer = -1,
                          .tag = -1,
                          .count_in = 8,
                          .count_out = 8,
                          .dtype = DTR_F32,
                          .label = "grad",
                          .site = "train.c:88" };
        uint64_t n = dtr__rec_begin(w, &r);
        if (i < 10) {
            dtr__rec_mark(w, n, DTR__REC_FINISHED, DTR_OK);
        }
    }
}

/* Twice as many spans as there is room for: the newest stay. */
static void record_spans(dtr_world *w, int n) {
    char label[80];
    for (int i = 1; i <= n; i++) {
        snprintf(label, sizeof label, "a label that is cut off behind its sixty-third byte %d", i);
        dtr__rec_span_add(w, "backward", label, 1000 * i, 1000 * i + 10, (uint64_t)i);
    }
}

/* reliability:P11, nccl:AB8: what a graph holds has no end, and is not what a rank is inside. */
START_TEST(P11_captured_operations_are_not_open) {
    char title[256], why[160];
    dtr_world world, *w = &world;
    open_world(w, "none", "64");
    record_some(w);
    dtr__record r = { .group = 2,
                      .seq = 9,
                      .kind = 2,
                      .flags = DTR__REC_CAPTURED,
                      .root_or_peer = -1,
                      .tag = -1,
                      .dtype = DTR_F32 };
    dtr__rec_mark(w, dtr__rec_begin(w, &r), DTR__REC_ENQUEUED, DTR_OK);
    const dtr__rec_memory *m = dtr__recorder_memory(w);
    dtr__recording *read = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
    ck_assert_ptr_nonnull(read);
    const dtr__record *last = &read->records[read->n_records - 1];
    dtr__recording_title(read, last, title, sizeof title);
    ck_assert_msg(strstr(title, "(captured)") != NULL, "%s", title);
    ck_assert_uint_eq(dtr__recording_open(read)->seq, 10);
    ck_assert_uint_eq(dtr__recording_last(read, true)->seq, 9);
    ck_assert_ptr_ne(dtr__recording_last(read, true), last);
    dtr__recording_free(read);
    close_world(w);
}
END_TEST

/* reliability:P9: entries of a batch may end with its record, also when that is written over. */
START_TEST(P9_entries_end_with_their_batch) {
    static const unsigned state[] = { DTR__REC_ISSUED, DTR__REC_FAILED, DTR__REC_FINISHED };
    char why[160];
    dtr_world w;
    open_world(&w, "none", "64");
    dtr__record r = { .group = 1, .op_id = 5, .kind = 1, .flags = DTR__REC_TOGETHER };
    uint64_t batch = dtr__rec_begin(&w, &r);
    r.flags |= DTR__REC_MEMBER;
    (void)dtr__rec_begin(&w, &r);
    for (int over = 0; over < 3; over++) {
        if (over == 1) {
            dtr__rec_mark(&w, batch, DTR__REC_FAILED, DTR_ERR_TIMEOUT);
        }
        for (int i = 0; over == 2 && i < 63; i++) { /* the ring but for the entry */
            (void)dtr__rec_begin(&w, &(dtr__record){ .group = 2, .kind = 2 });
        }
        const dtr__rec_memory *m = dtr__recorder_memory(&w);
        dtr__recording *read = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
        const dtr__record *entry = &read->records[over == 2 ? 0 : 1];
        ck_assert_uint_eq(entry->number, batch + 1);
        ck_assert_uint_eq(entry->state, state[over]);
        ck_assert_int_eq(entry->status, over == 1 ? DTR_ERR_TIMEOUT : DTR_OK);
        dtr__recording_free(read);
    }
    close_world(&w);
}
END_TEST

START_TEST(spans_have_a_ring_of_their_own) {
    enum { ROOM = 64 };
    dtr_world w;
    char why[160];
    open_world(&w, "none", "64");
    record_some(&w);
    record_spans(&w, 2 * ROOM + 5);
    const dtr__rec_memory *m = dtr__recorder_memory(&w);
    dtr__recording *r = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
    ck_assert_msg(r != NULL, "%s", why);
    ck_assert_uint_eq(r->n_records, 10);
    ck_assert_uint_eq(r->n_spans, ROOM);
    for (size_t i = 0; i < ROOM; i++) {
        const dtr__rec_span *s = &r->spans[i];
        uint64_t number = ROOM + 6 + i;
        ck_assert_uint_eq(s->number, number);
        ck_assert_uint_eq(s->nbytes, number);
        ck_assert_int_eq(s->t_begin, 1000 * (int64_t)number);
        ck_assert_int_eq(s->t_end, s->t_begin + 10);
        ck_assert_str_eq(s->what, "backward");
        ck_assert_int_eq(strncmp(s->label, "a label that is cut off", 23), 0);
        ck_assert_uint_eq(s->thread, (unsigned)gettid());
    }
    dtr__recording_free(r);
    r = dtr__recording_glance(m->header, m->nbytes, 4);
    ck_assert(r != NULL && r->n_spans == 0);
    dtr__recording_free(r);
    close_world(&w);
}
END_TEST

/* The newest steps stay, in order; one that is just being written is left out. */
START_TEST(steps_are_kept_in_order) {
    enum { KEPT = DTR__RECORDING_STEPS };
    dtr_world w;
    char why[160];
    const dtr__rec_step *step[KEPT];
    open_world(&w, "none", "64");
    const dtr__rec_memory *m = dtr__recorder_memory(&w);
    for (int n = 0; n <= 2 * KEPT + 5; n++) {
        dtr__recording *r = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
        const int kept = n < KEPT ? n : KEPT;
        ck_assert_uint_eq(dtr__recording_steps(r, step), (unsigned)kept);
        for (int i = 0; i < kept; i++) {
            const int64_t of = n - kept + i + 1;
            ck_assert_uint_eq(atomic_load(&step[i]->steps), (unsigned)(of % 2));
            ck_assert_int_eq(atomic_load(&step[i]->comm_ns), of * 4000000);
            ck_assert_int_eq(atomic_load(&step[i]->exposed_ns), of * 1000000);
            ck_assert_int_ge(atomic_load(&step[i]->t),
                             i > 0 ? atomic_load(&step[i - 1]->t) : r->head.mono_ns);
        }
        dtr__recording_free(r);
        dtr__rec_step_add(&w, (uint64_t)(n + 1) % 2, 4e-3 * (n + 1), 1e-3 * (n + 1));
    }
    dtr__rec_step *torn = &m->header->step[(2 * KEPT + 3) % KEPT];
    atomic_fetch_add(&torn->begun, KEPT); /* as by a writer that has just come */
    dtr__recording *r = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
    ck_assert_uint_eq(dtr__recording_steps(r, step), KEPT - 1);
    dtr__recording_free(r);
    close_world(&w);
}
END_TEST

static void check_some(const dtr__recording *r) {
    char title[256];
    ck_assert_int_eq(r->head.world_rank, 2);
    ck_assert_int_eq(r->head.world_size, 5);
    ck_assert_str_eq(r->head.host, "here");
    ck_assert_uint_eq(r->head.job_id, 77);
    ck_assert_ptr_nonnull(strstr(r->head.settings, "DTR_RECORDER_ENTRIES=64"));
    ck_assert_uint_eq(r->n_records, 10);
    ck_assert_uint_eq(r->torn, 0);
    ck_assert_uint_eq(dtr__recording_last(r, true)->seq, 9);
    ck_assert_uint_eq(dtr__recording_last(r, false)->seq, 10);
    ck_assert_str_eq(dtr__recording_title(r, dtr__recording_last(r, false), title, sizeof title),
                     "allreduce #10 f32 x 8 sum 'grad' group 'odd'");
    const dtr__rec_group *even = dtr__recording_group(r, 1),
                         *odd = dtr__recording_group_uid(r, 902);
    ck_assert(even != NULL && odd != NULL);
    ck_assert_int_eq(dtr__recording_member(r, even, 2), 4);
    ck_assert_int_eq(dtr__recording_member(r, odd, 0), 4);
    ck_assert_int_eq(dtr__recording_member(r, odd, 2), 1);
    ck_assert_int_eq(dtr__recording_member(r, odd, 3), -1);
}

START_TEST(survives_sigkill) {
    char path[400], why[160];
    int status = 0;
    make_base();
    pid_t child = fork();
    if (child == 0) {
        dtr_world w;
        open_world(&w, base, "64");
        record_some(&w);
        (void)kill(getpid(), SIGKILL);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status));
    find_file(path, sizeof path);
    dtr__recording *r = dtr__recording_load(path, why, sizeof why);
    ck_assert_msg(r != NULL, "%s: %s", path, why);
    check_some(r);
    ck_assert_uint_eq(r->head.pid, (unsigned)child);
    ck_assert_uint_eq(atomic_load(&r->head.phase), DTR__PHASE_OPENING);
    dtr__recording_free(r);
    remove_base();
}
END_TEST

START_TEST(named_folder_keeps_its_file_and_the_default_one_goes) {
    dtr_world w;
    char path[400];
    make_base();
    open_world(&w, base, "64");
    close_world(&w);
    find_file(path, sizeof path);
    ck_assert_str_ne(path, "");
    unlink(path);
    setenv("TMPDIR", base, 1);
    open_world(&w, "", "64");
    find_file(path, sizeof path);
    ck_assert_str_ne(path, "");
    close_world(&w);
    find_file(path, sizeof path);
    ck_assert_str_eq(path, "");
    unsetenv("TMPDIR");
    remove_base();
}
END_TEST

START_TEST(failure_keeps_the_default_folder) {
    dtr_world w;
    char folder[400], path[900], why[160];
    make_base();
    setenv("TMPDIR", base, 1);
    open_world(&w, "", "64");
    record_some(&w);
    (void)DTR_FAIL(NULL, DTR_ERR_TIMEOUT, "too late");
    dtr__rec_failure(&w, 2, DTR_ERR_TIMEOUT);
    (void)DTR_FAIL(NULL, DTR_ERR_ARG, "count is -1");
    dtr__rec_refused(&w, DTR_ERR_ARG);
    snprintf(path, sizeof path, "%s", dtr__recorder_memory(&w)->path);
    close_world(&w);
    dtr__recording *r = dtr__recording_load(path, why, sizeof why);
    ck_assert_msg(r != NULL, "%s: %s", path, why);
    check_some(r);
    ck_assert_int_eq(r->head.failure.status, DTR_ERR_TIMEOUT);
    ck_assert_str_eq(r->head.failure.text, "too late");
    ck_assert_str_eq(r->head.local.text, "count is -1");
    ck_assert_int_eq(dtr__recording_group(r, 2)->status, DTR_ERR_TIMEOUT);
    ck_assert_uint_eq(atomic_load(&r->head.phase), DTR__PHASE_CLOSED);
    dtr__recording_free(r);
    unlink(path);
    find_file(folder, sizeof folder);
    rmdir(folder);
    unsetenv("TMPDIR");
    remove_base();
}
END_TEST

/* FI24: no file can be made; a peer can still read the memory. */
START_TEST(without_a_file_the_ring_is_in_memory) {
    static const char *const bad[] = { "/dev/null/no", "none" };
    for (int i = 0; i < 2; i++) {
        dtr_world w;
        char why[160];
        open_world(&w, bad[i], "64");
        ck_assert_str_eq(dtr__recorder_memory(&w)->path, "");
        record_some(&w);
        const dtr__rec_memory *m = dtr__recorder_memory(&w);
        dtr__recording *r = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
        ck_assert_msg(r != NULL, "%s", why);
        check_some(r);
        dtr__recording_free(r);
        close_world(&w);
    }
}
END_TEST

/* Every length up to the ring, then some inside it: refused, or fewer records. */
START_TEST(cut_off_files_are_read_as_far_as_they_go) {
    dtr_world w;
    char why[160];
    open_world(&w, "none", "64");
    record_some(&w);
    const dtr__rec_memory *m = dtr__recorder_memory(&w);
    char *copy = aligned_alloc(64, m->nbytes);
    ck_assert_ptr_nonnull(copy);
    for (size_t n = 0; n <= m->nbytes; n += n < m->header->ring_at ? 256 : 64) {
        memcpy(copy, m->header, n);
        dtr__recording *r = dtr__recording_parse(copy, n, why, sizeof why);
        ck_assert_int_eq(r != NULL, n >= m->header->ring_at);
        size_t whole = r != NULL ? (n - m->header->ring_at) / sizeof(dtr__record) : 0;
        if (r != NULL) { /* slot 0 is the 64th operation's */
            size_t want = whole == 0 ? 0 : whole - 1 < 10 ? whole - 1 : 10;
            ck_assert_uint_eq(r->n_records, want);
        }
        dtr__recording_free(r);
    }
    free(copy);
    close_world(&w);
}
END_TEST

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Of the tenth operation. */
static void add_followers(dtr_world *w) {
    const dtr__rec_memory *m = dtr__recorder_memory(w);
    dtr__rec_group *g = (dtr__rec_group *)((char *)m->header + m->header->groups_at) + 1;
    atomic_store(&g->followers.t_begun, 1000);
    atomic_store(&g->followers.ended, 14);
    atomic_store(&g->followers.begun, 15);
    atomic_store(&g->followers.record, 10);
}

/* Damage of every kind must give an answer; sanitizers say whether it was looked up outside. */
static const char *p2p_kind(int k) {
    static const char *const kinds[] = { "", "send", "recv", "coalesced" };
    return kinds[k];
}

/* reliability:S6: messages say from where to where, batches and scopes of how many operations. */
START_TEST(S6_titles) {
    static const int all[] = { 0, 1, 2, 3, 4 };
    static const struct {
        dtr__record r;
        const char *title;
    } of[] = { { { .kind = 1, .p2p_seq = 4, .root_or_peer = 0, .tag = 7 },
                 "send #4 2->0 f32 x 3 tag 7 'halo' group 'all'" },
               { { .kind = 2, .p2p_seq = 5, .root_or_peer = 0, .tag = 7 },
                 "recv #5 2<-0 f32 x 3 tag 7 'halo' group 'all'" },
               { { .kind = 2, .p2p_seq = 6, .root_or_peer = -2, .tag = 0 },
                 "recv #6 2<-any f32 x 3 tag 0 'halo' group 'all'" },
               { { .kind = 3, .seq = 9, .root_or_peer = -1, .tag = 12 },
                 "coalesced #9 (12 operations) 'halo' group 'all'" } };
    char title[256], why[160];
    dtr_world w;
    open_world(&w, "none", "64");
    dtr__rec_names(&w, p2p_kind, 4, op_name, 2);
    dtr__rec_group_add(&w, 1, 901, "all", 2, 5, all);
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        dtr__record r = of[i].r;
        r.group = 1;
        r.count_in = 3;
        r.dtype = DTR_F32;
        strcpy(r.label, "halo");
        (void)dtr__rec_begin(&w, &r);
    }
    const dtr__rec_memory *m = dtr__recorder_memory(&w);
    dtr__recording *r = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
    ck_assert_msg(r != NULL && r->n_records == sizeof of / sizeof of[0], "%s", why);
    for (size_t i = 0; i < r->n_records; i++) {
        ck_assert_str_eq(dtr__recording_title(r, &r->records[i], title, sizeof title), of[i].title);
    }
    dtr__recording_free(r);
    close_world(&w);
}
END_TEST

START_TEST(damaged_files_are_refused_or_read) {
    enum { ROUNDS = 4000 };
    dtr_world w;
    char why[160], text[300];
    uint64_t seed = 88172645463325252u;
    open_world(&w, "none", "64");
    record_some(&w);
    record_spans(&w, 20);
    add_followers(&w);
    const dtr__rec_memory *m = dtr__recorder_memory(&w);
    char *copy = aligned_alloc(64, m->nbytes);
    int refused = 0;
    ck_assert_ptr_nonnull(copy);
    for (int i = 0; i < ROUNDS; i++) {
        memcpy(copy, m->header, m->nbytes);
        for (uint64_t hits = 1 + next(&seed) % 8; hits > 0; hits--) {
            bool front = next(&seed) % 2 == 0;
            size_t at = next(&seed) % (front ? 256 : m->nbytes);
            uint64_t value = next(&seed);
            memcpy(copy + (at < m->nbytes - 8 ? at : 0), &value, 1 + next(&seed) % 8);
        }
        dtr__recording *r = dtr__recording_parse(copy, m->nbytes, why, sizeof why);
        refused += r == NULL;
        for (size_t k = 0; r != NULL && k < r->n_records; k++) {
            dtr__recording_title(r, &r->records[k], text, sizeof text);
        }
        for (size_t k = 0; r != NULL && k < r->n_spans; k++) {
            ck_assert(strlen(r->spans[k].label) < sizeof r->spans[k].label);
        }
        for (size_t k = 0; r != NULL && k < r->n_groups; k++) {
            for (int member = -1; member <= r->groups[k].size && member < 100; member++) {
                int rank = dtr__recording_member(r, &r->groups[k], member);
                ck_assert(rank >= -1 && rank < r->head.world_size);
            }
        }
        dtr__recording_free(r);
    }
    ck_assert(refused > 0 && refused < ROUNDS);
    free(copy);
    close_world(&w);
}
END_TEST

/* The clock's numbers do not end in 2043. */
START_TEST(recordings_of_the_next_century_are_read) {
    dtr_world w;
    char why[160];
    open_world(&w, "none", "64");
    record_some(&w);
    dtr__rec_memory m = *dtr__recorder_memory(&w);
    m.header->real_ns = INT64_C(4102444800) * 1000000000; /* 2100-01-01 */
    dtr__recording *r = dtr__recording_parse(m.header, m.nbytes, why, sizeof why);
    ck_assert_msg(r != NULL, "%s", why);
    check_some(r);
    dtr__recording_free(r);
    close_world(&w);
}
END_TEST

/* reliability:CP1, DR2: what the progress thread is inside of, once that lasts; a process that has
 * ended in order is not asked. */
START_TEST(a_thread_that_does_not_come_back) {
    static const char *const calls[] = { "MPI_Test", "" };
    dtr_world w;
    char why[160], doing[640];
    const char *inside = NULL;
    open_world(&w, "none", "64");
    record_some(&w);
    dtr__rec_memory m = *dtr__recorder_memory(&w);
    for (int i = 0; i < 2; i++) {
        const int64_t s = 1000000000;
        memset((void *)m.header->progress_inside, 0, sizeof m.header->progress_inside);
        memcpy((void *)m.header->progress_inside, calls[i], strlen(calls[i]));
        for (int k = 0; k < 4; k++) { /* moves; since a moment; since 7 s; the same at the end */
            atomic_store(&m.header->beat_ns, 20 * s);
            atomic_store(&m.header->progress_still_ns, k == 0 ? 0 : k == 1 ? 19 * s : 13 * s);
            atomic_store(&m.header->phase, k == 3 ? DTR__PHASE_CLOSED : DTR__PHASE_RUNNING);
            dtr__recording *r = dtr__recording_parse(m.header, m.nbytes, why, sizeof why);
            ck_assert_msg(r != NULL, "%s", why);
            ck_assert_double_eq(dtr__recording_stuck(r, &inside), k == 2 ? 7 : 0);
            ck_assert_str_eq(inside, calls[i]);
            r->alive = true;
            dtr__recording_doing(r, 21 * s, doing, sizeof doing);
            const char *want = i == 0 ? "; its progress thread has been inside MPI_Test for 7.0 s"
                                      : "inside one callback or reduction for 7.0 s";
            ck_assert_msg((strstr(doing, want) != NULL) == (k == 2), "%s", doing);
            dtr__recording_free(r);
        }
    }
    memset((void *)m.header->progress_inside, 'x', sizeof m.header->progress_inside);
    dtr__recording *r = dtr__recording_parse(m.header, m.nbytes, why, sizeof why);
    ck_assert_msg(r != NULL, "%s", why);
    (void)dtr__recording_stuck(r, &inside);
    ck_assert_uint_eq(strlen(inside), sizeof m.header->progress_inside - 1);
    dtr__recording_free(r);
    close_world(&w);
}
END_TEST

START_TEST(process_identity) {
    uint64_t start = 0, again = 0;
    char state = 0;
    ck_assert(dtr__process_look((uint32_t)getpid(), &start, &state));
    ck_assert(start > 0 && state == 'R');
    ck_assert(dtr__process_look((uint32_t)getpid(), &again, &state));
    ck_assert_uint_eq(start, again);
    ck_assert(!dtr__process_look(0x7fffffff, &start, &state));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("recording");
    tcase_add_test(tc, P11_captured_operations_are_not_open);
    tcase_add_test(tc, S6_titles);
    tcase_add_test(tc, P9_entries_end_with_their_batch);
    tcase_add_test(tc, survives_sigkill);
    tcase_add_test(tc, named_folder_keeps_its_file_and_the_default_one_goes);
    tcase_add_test(tc, failure_keeps_the_default_folder);
    tcase_add_test(tc, without_a_file_the_ring_is_in_memory);
    tcase_add_test(tc, cut_off_files_are_read_as_far_as_they_go);
    tcase_add_test(tc, damaged_files_are_refused_or_read);
    tcase_add_test(tc, spans_have_a_ring_of_their_own);
    tcase_add_test(tc, steps_are_kept_in_order);
    tcase_add_test(tc, recordings_of_the_next_century_are_read);
    tcase_add_test(tc, a_thread_that_does_not_come_back);
    tcase_add_test(tc, process_identity);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime recording", make);
}
