/* The flight recorder's file and its reader (reliability: P1, P7, P12, O14, S6, T20, FI24), without
 * MPI.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rt_internal.h"
#include "rt_recording.h"
#include "unit.h"

static char base[64];

static void make_base(void) {
    strcpy(base, "/tmp/dtr-test-recording-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(base));
}

static void remove_base(void) {
    char path[600];
    DIR *d = opendir(base);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", base, e->d_name);
        if (e->d_name[0] != '.') {
            unlink(path);
        }
    }
    closedir(d);
    ck_assert_int_eq(rmdir(base), 0);
}

static void open_world(dtr_world *w, const char *folder, const char *entries) {
    memset(w, 0, sizeof *w);
    w->serial = 3;
    w->job_id = 77;
    w->rank = 2;
    w->size = 5;
    strcpy(w->host, "here");
    setenv("DTR_RECORDER_ENTRIES", entries, 1);
    setenv("DTR_RECORDER_DIR", folder, 1);
    ck_assert_int_eq(dtr__options_read(&w->options), DTR_OK);
    unsetenv("DTR_RECORDER_ENTRIES");
    unsetenv("DTR_RECORDER_DIR");
    ck_assert_int_eq(dtr__recorder_open(w), DTR_OK);
}

static void close_world(dtr_world *w) {
    dtr__recorder_close(w);
    dtr__options_free(&w->options);
}

static const char *kind(int k) {
    return k == 2 ? "allreduce" : "other";
}

static const char *op(int o) {
    return o == 0 ? "sum" : "max";
}

/* Two groups, one with evenly spaced members; ten operations, the last not finished. */
static void record_some(dtr_world *w) {
    static const int even[] = { 0, 2, 4 }, odd[] = { 4, 2, 1 };
    dtr__rec_names(w, kind, 3, op, 2);
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
                          .dtype_op = DTR_F32,
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
                      .flags = DTR__RECORDING_CAPTURED,
                      .root_or_peer = -1,
                      .tag = -1,
                      .dtype_op = DTR_F32 };
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
    dtr__record r = { .group = 1, .op_id = 5, .kind = 1, .flags = DTR__RECORDING_TOGETHER };
    uint64_t batch = dtr__rec_begin(&w, &r);
    r.flags |= DTR__RECORDING_MEMBER;
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

/* The one file of `base`. */
static void find_file(char *path, size_t cap) {
    DIR *d = opendir(base);
    path[0] = '\0';
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] != '.') {
            snprintf(path, cap, "%s/%s", base, e->d_name);
        }
    }
    closedir(d);
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
    dtr__rec_names(&w, p2p_kind, 4, op, 2);
    dtr__rec_group_add(&w, 1, 901, "all", 2, 5, all);
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        dtr__record r = of[i].r;
        r.group = 1;
        r.count_in = 3;
        r.dtype_op = DTR_F32;
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

/* ---- calls that follow each other closely ---- */

enum { SORT = 9 };

static const dtr__record repeated = { .group = 1,
                                      .kind = 2,
                                      .root_or_peer = -1,
                                      .tag = -1,
                                      .count_in = 2,
                                      .count_out = 2,
                                      .dtype_op = DTR_F32,
                                      .label = "dot",
                                      .site = "solve.c:7" };

static dtr__rec_run open_run(dtr_world *w) {
    static const int all[] = { 0, 1, 2, 3, 4 };
    dtr__rec_names(w, kind, 3, op, 2);
    dtr__rec_run run = { .words = dtr__rec_group_add(w, 1, 901, "all", 2, 5, all) };
    ck_assert_ptr_nonnull(run.words);
    return run;
}

/* One call, with a record of its own or not; returns whether it has none. */
static bool call(dtr_world *w, dtr__rec_run *run, uint64_t sort, uint64_t seq, int64_t now) {
    dtr__record r = repeated;
    r.seq = r.op_id = seq;
    r.t_issued = now;
    r.deadline = now + 9000;
    if (dtr__rec_follow(w, run, sort, seq, now)) {
        dtr__rec_follower_ended(run, seq);
        return true;
    }
    uint64_t number = dtr__rec_lead(w, run, sort, &r, 0);
    dtr__rec_finish(w, number, now);
    return false;
}

/* P9: what a reader is told of them. Every call once, in order, the last of them `open` or not. */
static void check_calls(const dtr_world *w, uint64_t n, bool open) {
    char why[160], title[256];
    const dtr__rec_memory *m = dtr__recorder_memory(w);
    dtr__recording *r = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
    ck_assert_msg(r != NULL, "%s", why);
    ck_assert_uint_eq(r->n_records, n);
    for (uint64_t i = 0; i < n; i++) {
        const dtr__record *rec = &r->records[i];
        bool last = i + 1 == n;
        ck_assert_uint_eq(rec->seq, i + 1);
        ck_assert_uint_eq(rec->op_id, i + 1);
        ck_assert_int_eq(rec->state, last && open ? DTR__REC_ISSUED : DTR__REC_FINISHED);
        ck_assert_str_eq(rec->site, "solve.c:7");
        ck_assert_int_ge(rec->t_issued, i > 0 ? rec[-1].t_finished : 1);
        ck_assert(dtr__record_over(rec) == (rec->t_finished != 0));
        ck_assert_int_gt(rec->deadline, rec->t_issued);
    }
    ck_assert_ptr_eq(dtr__recording_open(r), open ? &r->records[n - 1] : NULL);
    ck_assert_uint_eq(dtr__recording_last(r, true)->seq, open ? n - 1 : n);
    snprintf(why, sizeof why, "allreduce #%d f32 x 2 sum 'dot' group 'all'", (int)n);
    ck_assert_str_eq(dtr__recording_title(r, &r->records[n - 1], title, sizeof title), why);
    dtr__recording_free(r);
}

START_TEST(calls_that_follow_closely_share_a_record) {
    dtr_world w;
    dtr__record other = { .group = 2, .kind = 1 };
    open_world(&w, "none", "64");
    dtr__rec_run run = open_run(&w);
    ck_assert(!call(&w, &run, SORT, 1, 1000));
    ck_assert(call(&w, &run, SORT, 2, 2000) && call(&w, &run, SORT, 3, 3000));
    check_calls(&w, 3, false);
    ck_assert(dtr__rec_follow(&w, &run, SORT, 4, 3500));
    check_calls(&w, 4, true);
    dtr__rec_follower_ended(&run, 4);
    check_calls(&w, 4, false);
    ck_assert(!call(&w, &run, SORT + 1, 5, 4000)); /* another sort */
    ck_assert(call(&w, &run, SORT + 1, 6, 4500));
    ck_assert(!call(&w, &run, SORT + 1, 7, 1000000)); /* a pause */
    check_calls(&w, 7, false);
    ck_assert(dtr__rec_follow(&w, &run, SORT + 1, 8, 1000500));
    run.thread++; /* another thread */
    ck_assert(!dtr__rec_follow(&w, &run, SORT + 1, 9, 1000600));
    (void)dtr__rec_begin(&w, &other);
    run.thread--;
    ck_assert(!dtr__rec_follow(&w, &run, SORT + 1, 9, 1000700)); /* another record */
    close_world(&w);
}
END_TEST

/* A call that takes long gets its record after all, and is told once. */
START_TEST(follower_that_takes_long_has_its_own_record) {
    dtr_world w;
    dtr__record r = repeated;
    open_world(&w, "none", "64");
    dtr__rec_run run = open_run(&w);
    ck_assert(!call(&w, &run, SORT, 1, 1000));
    ck_assert(call(&w, &run, SORT, 2, 1500));
    ck_assert(dtr__rec_follow(&w, &run, SORT, 3, 2000));
    r.seq = r.op_id = 3;
    r.t_issued = 2000;
    r.deadline = 11000;
    uint64_t number = dtr__rec_lead(&w, &run, SORT, &r, 0);
    check_calls(&w, 3, true);
    dtr__rec_mark(&w, number, DTR__REC_FINISHED, DTR_OK);
    check_calls(&w, 3, false);
    close_world(&w);
}
END_TEST

/* Long runs are cut at the same numbers on all ranks; of very many calls the newest are told. */
START_TEST(runs_are_cut_and_expanded_as_far_as_there_is_room) {
    enum { CALLS = 20000 };
    dtr_world w;
    char why[160];
    open_world(&w, "none", "64");
    dtr__rec_run run = open_run(&w);
    for (uint64_t i = 1; i <= CALLS; i++) {
        bool follows = call(&w, &run, SORT, i, 1000 + (int64_t)i * 100);
        ck_assert(follows == (i > 1 && i % DTR__REC_RUN_MOST != 0));
    }
    const dtr__rec_memory *m = dtr__recorder_memory(&w);
    dtr__recording *r = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
    ck_assert_msg(r != NULL, "%s", why);
    ck_assert_uint_eq(r->n_records, 2 * 64 + DTR__REC_RUN_MOST);
    for (size_t i = 1; i <= r->n_records; i++) {
        const dtr__record *rec = &r->records[r->n_records - i];
        ck_assert(i > 64 || rec->seq == CALLS + 1 - i);
        ck_assert(i == 1 || rec->seq < rec[1].seq);
        ck_assert(rec->follower == rec->seq % DTR__REC_RUN_MOST);
    }
    dtr__recording_free(r);
    close_world(&w);
}
END_TEST

/* The last finished and the current call can be told. */
START_TEST(followers_survive_sigkill) {
    char path[400], why[160], doing[640];
    int status = 0;
    make_base();
    pid_t child = fork();
    if (child == 0) {
        dtr_world w;
        open_world(&w, base, "64");
        dtr__rec_run run = open_run(&w);
        for (uint64_t i = 1; i <= 30; i++) {
            call(&w, &run, SORT, i, 1000 + (int64_t)i);
        }
        (void)dtr__rec_follow(&w, &run, SORT, 31, 2000);
        (void)kill(getpid(), SIGKILL);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    find_file(path, sizeof path);
    dtr__recording *r = dtr__recording_load(path, why, sizeof why);
    ck_assert_msg(r != NULL, "%s: %s", path, why);
    ck_assert_uint_eq(r->n_records, 31);
    ck_assert_uint_eq(dtr__recording_last(r, true)->seq, 30);
    dtr__recording_doing(r, 5000, doing, sizeof doing);
    ck_assert_msg(strstr(doing, "it was inside allreduce #31 f32 x 2 sum 'dot'") != NULL &&
                      strstr(doing, "solve.c:7") != NULL,
                  "%s", doing);
    dtr__recording_free(r);
    remove_base();
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
    tcase_add_test(tc, calls_that_follow_closely_share_a_record);
    tcase_add_test(tc, follower_that_takes_long_has_its_own_record);
    tcase_add_test(tc, runs_are_cut_and_expanded_as_far_as_there_is_room);
    tcase_add_test(tc, followers_survive_sigkill);
    tcase_add_test(tc, recordings_of_the_next_century_are_read);
    tcase_add_test(tc, a_thread_that_does_not_come_back);
    tcase_add_test(tc, process_identity);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime recording", make);
}
