/* Writing dumps, and noticing who asks for them. Requests travel without messages: each rank's
 * recording says what it was asked for and what broke its groups, and all ranks of the node read
 * it. */
#include "diagnosis/dump.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/world.h"
#include "control/peers.h"
#include "diagnosis/writer.h"
#include "recorder/hash.h"

enum { CAUSES = 16, CAUSE_BYTES = 512, LIMIT_S = 60, LAST_S = 5 };

/* So long the watchdog stands by while a dump is written. */
static const double STAND_BY_S = 0.5;

struct dtr__dump {
    int signal; /* 0: none */
    bool on_error;
    pthread_mutex_t lock;            /* one dump at a time */
    char cause[CAUSES][CAUSE_BYTES]; /* lock; the first ones and the newest */
    int64_t when[CAUSES];            /* lock; ns since 1970 */
    int n_causes;                    /* lock */
    bool warned;                     /* the watchdog's; that dumps cannot be written */
    uint64_t pending;                /* the watchdog's; one that was not written at once; 0: none */
    /* The watchdog's: what has been dealt with. */
    uint32_t signals, requests, *asked; /* [local size] */
    uint32_t *remote;                   /* [local size] failures on other nodes */
    char outgoing[CAUSE_BYTES];         /* to other nodes; "": nothing */
    uint32_t *failed;                   /* [local size] versions seen */
};

/* ---- JSON ---- */

void dtr__json_string(FILE *to, const char *text) {
    putc('"', to);
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            fprintf(to, "\\%c", *c);
        } else if (*c < 0x20 || *c >= 0x7f) {
            fprintf(to, "\\u%04x", *c);
        } else {
            putc(*c, to);
        }
    }
    putc('"', to);
}

static void text_member(FILE *to, const char *name, const char *text) {
    fprintf(to, ",\"%s\":", name);
    dtr__json_string(to, text);
}

/* ---- the parts of a dump ---- */

static double seconds(int64_t ns) {
    return (double)ns * 1e-9;
}

static int64_t real_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void write_head(FILE *to, const dtr__rec_header *h) {
    fprintf(to,
            "{\"dump\":1,\"job\":\"%016" PRIx64 "\",\"world_rank\":%d,\"world_size\":%d,"
            "\"pid\":%u,\"written\":%.6f",
            h->job_id, h->world_rank, h->world_size, h->pid, seconds(real_now()));
    text_member(to, "host", h->host);
    text_member(to, "library", h->library);
    text_member(to, "command", h->command);
    text_member(to, "settings", h->settings);
}

static void write_causes(FILE *to, const struct dtr__dump *d) {
    fprintf(to, ",\n\"causes\":[");
    for (int i = 0; i < d->n_causes; i++) {
        fprintf(to, "%s\n{\"time\":%.6f", i > 0 ? "," : "", seconds(d->when[i]));
        text_member(to, "text", d->cause[i]);
        fprintf(to, "}");
    }
    fprintf(to, "]");
}

static void write_error(FILE *to, const char *name, const dtr__rec_error *e) {
    fprintf(to, ",\n\"%s\":", name);
    if (atomic_load(&e->version) == 0) {
        fprintf(to, "null");
        return;
    }
    fprintf(to, "{\"seq\":%" PRIu64, e->seq);
    text_member(to, "status", dtr_status_name((dtr_status)e->status));
    text_member(to, "operation", e->operation);
    text_member(to, "group", e->group);
    text_member(to, "text", e->text);
    fprintf(to, "}");
}

static void write_groups(FILE *to, const dtr__recording *r) {
    const char *comma = "";
    fprintf(to, ",\n\"groups\":[");
    for (size_t i = 0; i < r->n_groups; i++) {
        const dtr__rec_group *g = &r->groups[i];
        if (!g->gone) {
            fprintf(to, "%s\n{\"id\":%" PRIu64 ",\"rank\":%d,\"size\":%d", comma, g->uid - 1,
                    g->own_rank, g->size);
            text_member(to, "name", g->name);
            text_member(to, "status", dtr_status_name((dtr_status)g->status));
            fprintf(to, "}");
            comma = ",";
        }
    }
    fprintf(to, "]");
}

/* What can be seen of the ranks of this node, this one included. */
static void write_node(FILE *to, const dtr_world *world) {
    const char *comma = "";
    fprintf(to, ",\n\"node\":[");
    for (int i = 0; i < world->local_size; i++) {
        int rank = world->local_world[i];
        char doing[1024];
        dtr__recording *r = dtr__peer_look(world, rank);
        fprintf(to, "%s\n{\"world_rank\":%d", comma, rank);
        comma = ",";
        if (r != NULL) {
            const char *inside = "";
            int64_t now = dtr__now_ns(), beat = atomic_load(&r->head.beat_ns);
            fprintf(to, ",\"pid\":%u,\"alive\":%s,\"state\":\"%c\",\"watchdog_quiet_s\":%.3f",
                    r->head.pid, r->alive ? "true" : "false", r->state,
                    beat != 0 ? seconds(now - beat) : -1.0);
            text_member(to, "doing", dtr__recording_doing(r, now, doing, sizeof doing));
            const double still = dtr__recording_stuck(r, &inside);
            if (still > 0) {
                fprintf(to, ",\"progress_still_s\":%.3f", still);
                text_member(to, "progress_inside", inside);
            }
        }
        dtr__recording_free(r);
        fprintf(to, "}");
    }
    fprintf(to, "]");
}

/* The first operations whose outputs differ between ranks of this node. */
static void write_differences(FILE *to, const dtr_world *world, const dtr__recording *own) {
    const char *comma = "";
    char text[1024];
    size_t n = (size_t)world->local_size;
    dtr__recording **all = calloc(n, sizeof *all);
    for (size_t i = 0; all != NULL && i < n; i++) {
        all[i] = dtr__peer_look(world, world->local_world[i]);
    }
    fprintf(to, ",\n\"outputs_differ\":[");
    for (size_t i = 0; all != NULL && i < own->n_groups; i++) {
        if (dtr__hash_difference((const dtr__recording *const *)all, (int)n, own->groups[i].uid,
                                 text, sizeof text)[0] != '\0') {
            fputs(comma, to);
            dtr__json_string(to, text);
            comma = ",";
        }
    }
    fprintf(to, "]");
    for (size_t i = 0; all != NULL && i < n; i++) {
        dtr__recording_free(all[i]);
    }
    free((void *)all);
}

static void write_record(FILE *to, const dtr__recording *r, const dtr__record *rec, int64_t now) {
    static const char *const states[] = {
        "", "issued", "enqueued", "started", "finished", "failed"
    };
    char title[256], stack[640];
    fprintf(to, "{\"number\":%" PRIu64 ",\"state\":\"%s\",\"issued_s_ago\":%.6f,\"took_s\":",
            rec->number, states[rec->state], seconds(now - rec->t_issued));
    fprintf(to, rec->t_finished != 0 ? "%.6f" : "null", seconds(rec->t_finished - rec->t_issued));
    fprintf(to, ",\"nbytes\":%" PRIu64 ",\"thread\":%u,\"fingerprint\":\"%016" PRIx64 "\"",
            rec->nbytes, rec->thread, rec->fingerprint);
    text_member(to, "operation", dtr__recording_title(r, rec, title, sizeof title));
    text_member(to, "site", rec->site);
    if (dtr__recording_stack(r, rec, stack, sizeof stack)[0] != '\0') {
        text_member(to, "stack", stack);
    }
    if (rec->t_started != 0) {
        fprintf(to, ",\"started_after_s\":%.9f", seconds(rec->t_started - rec->t_issued));
    }
    if (rec->hash_in != 0 || rec->hash_out != 0) {
        fprintf(to, ",\"hash_in\":\"%016" PRIx64 "\",\"hash_out\":\"%016" PRIx64 "\"", rec->hash_in,
                rec->hash_out);
    }
    text_member(to, "status",
                dtr__record_over(rec) ? dtr_status_name((dtr_status)rec->status) : "");
    fprintf(to, "}");
}

/* Those that have not ended, or all, oldest first. */
static void write_records(FILE *to, const dtr__recording *r, const char *name, bool all) {
    const char *comma = "";
    int64_t now = dtr__now_ns();
    fprintf(to, ",\n\"%s\":[", name);
    for (size_t i = 0; i < r->n_records; i++) {
        bool open = !dtr__record_over(&r->records[i]) && !dtr__record_captured(&r->records[i]);
        if (all || open) {
            fprintf(to, "%s\n", comma);
            write_record(to, r, &r->records[i], now);
            comma = ",";
        }
    }
    fprintf(to, "]");
}

/* The whole dump; false with errno. */
static bool make_text(const dtr_world *world, const struct dtr__dump *d, dtr__text *t) {
    dtr__recording *r = dtr__peer_look(world, world->rank);
    bool fine = r != NULL && dtr__text_begin(t);
    if (fine) {
        write_head(t->to, &r->head);
        write_causes(t->to, d);
        write_error(t->to, "failure", &r->head.failure);
        write_error(t->to, "last_refused", &r->head.local);
        write_groups(t->to, r);
        write_node(t->to, world);
        if (world->recording.hashes) {
            write_differences(t->to, world, r);
        }
        write_records(t->to, r, "open", false);
        write_records(t->to, r, "records", true);
        fprintf(t->to, "}\n");
        fine = dtr__text_end(t);
    }
    dtr__recording_free(r);
    errno = fine ? errno : ENOMEM;
    return fine;
}

/* ---- one dump; lock held ---- */

static void add_cause(struct dtr__dump *d, const char *text) {
    int at = d->n_causes < CAUSES ? d->n_causes++ : CAUSES - 1;
    snprintf(d->cause[at], CAUSE_BYTES, "%s", text);
    d->when[at] = real_now();
}

static bool dump_path(const dtr_world *world, char *path, size_t cap) {
    return dtr__recording_beside(dtr__recorder_memory(world)->path, ".dump.json", path, cap);
}

/* Hands one to the writer. */
static dtr_status dump(const dtr_world *world, struct dtr__dump *d, char *path, size_t cap,
                       uint64_t *number) {
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_dump" };
    dtr__text t;
    DTR_REQUIRE(dump_path(world, path, cap), &ctx, DTR_ERR_UNSUPPORTED,
                "the flight recorder has no folder, so that a dump has no place: let "
                "DTR_RECORDER_DIR name one that can be written");
    if (!make_text(world, d, &t)) {
        return DTR_FAIL_ERRNO(&ctx, DTR_ERR_IO, "cannot write the dump %s", path);
    }
    *number =
        dtr__writer_put(world->diagnosis.writer, DTR__WRITTEN_DUMP, path, 0600, t.bytes, t.nbytes);
    return DTR_OK;
}

/* DTR_IN_PROGRESS: not written within `limit_s`. */
static dtr_status await(const dtr_world *world, const char *path, uint64_t number, double limit_s) {
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_dump" };
    int code = dtr__writer_wait(world->diagnosis.writer, DTR__WRITTEN_DUMP, number, limit_s);
    if (code == EINPROGRESS) {
        return DTR_IN_PROGRESS;
    }
    if (code != 0) {
        errno = code;
        return DTR_FAIL_ERRNO(&ctx, DTR_ERR_IO, "cannot write the dump %s", path);
    }
    atomic_fetch_add(&dtr__recorder_header(world)->dumps, 1);
    return DTR_OK;
}

/* ---- asking the others ---- */

/* They look at it in their next round. Lock held. */
static void ask_node(const dtr_world *world, const char *reason) {
    dtr__rec_header *h = dtr__recorder_header(world);
    snprintf(h->dump_reason, sizeof h->dump_reason, "%.*s", (int)sizeof h->dump_reason - 1, reason);
    atomic_fetch_add(&h->dump_asked, 1);
}

dtr_status dtr_world_dump(dtr_world *world, const char *reason) {
    DTR_TRY(dtr__world_check(world));
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_dump" };
    struct dtr__dump *d = world->diagnosis.dump;
    char path[560], text[CAUSE_BYTES];
    DTR_REQUIRE(reason != NULL, &ctx, DTR_ERR_ARG,
                "dtr_world_dump: reason is NULL; say in a few words why, \"\" for nothing");
    snprintf(text, sizeof text, "dtr_world_dump on rank %d: %s", world->rank, reason);
    pthread_mutex_lock(&d->lock);
    add_cause(d, text);
    ask_node(world, text);
    uint64_t number = 0;
    dtr_status s = dump(world, d, path, sizeof path, &number);
    pthread_mutex_unlock(&d->lock);
    s = s == DTR_OK ? await(world, path, number, LIMIT_S) : s;
    DTR_REQUIRE(s != DTR_IN_PROGRESS, &ctx, DTR_ERR_IO,
                "the dump %s has not been written within %d s: does its file system hang?", path,
                LIMIT_S);
    return s;
}

/* ---- the watchdog's round ---- */

static const dtr__rec_header *header_of(const dtr_world *world, int local_rank) {
    return local_rank == world->local_rank ? dtr__recorder_header(world)
                                           : dtr__peer_header(world, local_rank);
}

/* This rank was asked: the others of its node shall know. */
static bool look_at_own(dtr_world *world, struct dtr__dump *d) {
    char text[CAUSE_BYTES] = "";
    uint32_t requests = atomic_load(&dtr__recorder_header(world)->dump_requested);
    uint32_t signals = d->signal != 0 ? dtr__signal_count(d->signal) : 0;
    if (requests != d->requests) {
        snprintf(text, sizeof text, "dtr-doctor --trigger on rank %d", world->rank);
    } else if (signals != d->signals) {
        snprintf(text, sizeof text, "signal %d on rank %d", d->signal, world->rank);
    }
    d->requests = requests;
    d->signals = signals;
    if (text[0] == '\0') {
        return false;
    }
    add_cause(d, text);
    ask_node(world, text);
    return true;
}

/* Ranks of one node that break by the same cause make it one. */
static bool is_known(const struct dtr__dump *d, const char *text) {
    for (int i = 0; i < d->n_causes; i++) {
        if (strcmp(d->cause[i], text) == 0) {
            return true;
        }
    }
    return false;
}

static bool add_failure(struct dtr__dump *d, const char *text) {
    if (!d->on_error || is_known(d, text)) {
        return false;
    }
    add_cause(d, text);
    return true;
}

static bool look_at_failure(struct dtr__dump *d, const dtr__rec_header *h, int local_rank) {
    char text[CAUSE_BYTES];
    dtr__rec_error e;
    if (d->failed[local_rank] == atomic_load(&h->failure.version) ||
        !dtr__rec_error_copy(&h->failure, &e)) {
        return false;
    }
    d->failed[local_rank] = atomic_load(&e.version);
    if (e.status == DTR_ERR_ABORTED) {
        snprintf(text, sizeof text, "dtr_group_abort of group '%.64s'", e.group);
    } else {
        snprintf(text, sizeof text, "%.40s #%" PRIu64 " of group '%.64s' failed",
                 e.operation[0] != '\0' ? e.operation : "operation", e.seq, e.group);
    }
    return add_failure(d, text) && snprintf(d->outgoing, sizeof d->outgoing, "%s", text) > 0;
}

/* The first error of a job asks all of its ranks, also those that are in no group with it. */
static bool look_at_remote(struct dtr__dump *d, const dtr__rec_header *h, int local_rank) {
    char text[sizeof h->remote_failure];
    uint32_t count = atomic_load(&h->remote_failures);
    if (count == d->remote[local_rank]) {
        return false;
    }
    d->remote[local_rank] = count;
    memcpy(text, h->remote_failure, sizeof text);
    text[sizeof text - 1] = '\0';
    return add_failure(d, text);
}

static bool look_at_request(const dtr_world *world, struct dtr__dump *d, const dtr__rec_header *h,
                            int local_rank) {
    char text[sizeof h->dump_reason];
    uint32_t asked = atomic_load(&h->dump_asked);
    if (asked == d->asked[local_rank] || local_rank == world->local_rank) {
        return false;
    }
    d->asked[local_rank] = asked;
    memcpy(text, h->dump_reason, sizeof text);
    text[sizeof text - 1] = '\0';
    add_cause(d, text);
    return true;
}

static bool look_at_rank(const dtr_world *world, struct dtr__dump *d, int local_rank) {
    const dtr__rec_header *h = header_of(world, local_rank);
    bool failed = h != NULL && look_at_failure(d, h, local_rank);
    failed = (h != NULL && look_at_remote(d, h, local_rank)) || failed;
    return (h != NULL && look_at_request(world, d, h, local_rank)) || failed;
}

/* What became of a dump; errors without a folder for dumps are nothing new to say. */
static void report(const dtr_world *world, struct dtr__dump *d, dtr_status s, const char *path,
                   bool on_request) {
    if (s == DTR_OK) {
        DTR_INFO(world, "dump written to %s", path);
    } else if (!d->warned && (on_request || s != DTR_ERR_UNSUPPORTED)) {
        d->warned = true;
        DTR_WARN(world, "%s", dtr_last_error_message());
    }
}

/* One that had not been written when the watchdog went on. */
static void look_at_pending(dtr_world *world, struct dtr__dump *d, double limit_s) {
    char path[560];
    if (d->pending == 0 || !dump_path(world, path, sizeof path)) {
        return;
    }
    dtr_status s = await(world, path, d->pending, limit_s);
    if (s != DTR_IN_PROGRESS) {
        d->pending = 0;
        report(world, d, s, path, true);
    }
}

static void begin(dtr_world *world, struct dtr__dump *d, const char *path, uint64_t number) {
    if (d->pending == 0) {
        dtr_status s = await(world, path, number, STAND_BY_S);
        if (s != DTR_IN_PROGRESS) {
            report(world, d, s, path, true);
            return;
        }
        DTR_WARN(world,
                 "the dump %s has not been written within %g s: does its file system hang? The "
                 "watchdog goes on",
                 path, STAND_BY_S);
    }
    d->pending = number;
}

void dtr__dump_round(dtr_world *world) {
    struct dtr__dump *d = world->diagnosis.dump;
    char path[560] = "";
    uint64_t number = 0;
    look_at_pending(world, d, 0);
    pthread_mutex_lock(&d->lock);
    bool wanted = look_at_own(world, d), on_request = wanted;
    for (int i = 0; i < world->local_size; i++) {
        wanted = look_at_rank(world, d, i) || wanted;
    }
    char outgoing[CAUSE_BYTES];
    snprintf(outgoing, sizeof outgoing, "%s", d->outgoing);
    d->outgoing[0] = '\0';
    dtr_status s = wanted ? dump(world, d, path, sizeof path, &number) : DTR_OK;
    pthread_mutex_unlock(&d->lock);
    if (wanted && s == DTR_OK) {
        begin(world, d, path, number);
    } else if (wanted) {
        report(world, d, s, path, on_request);
    }
    if (outgoing[0] != '\0') {
        dtr__control_report_dump(world, outgoing);
    }
}

void dtr__dump_last_round(dtr_world *world) {
    dtr__dump_round(world);
    look_at_pending(world, world->diagnosis.dump, LAST_S);
}

/* ---- life ---- */

dtr_status dtr__dump_open(dtr_world *world) {
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_create" };
    struct dtr__dump *d = calloc(1, sizeof *d);
    bool theirs = false;
    DTR_REQUIRE(d != NULL, &ctx, DTR_ERR_NOMEM, "no memory for the state of dumps");
    pthread_mutex_init(&d->lock, NULL);
    world->diagnosis.dump = d;
    d->asked = calloc((size_t)world->local_size, sizeof *d->asked);
    d->failed = calloc((size_t)world->local_size, sizeof *d->failed);
    d->remote = calloc((size_t)world->local_size, sizeof *d->remote);
    DTR_REQUIRE(d->asked != NULL && d->failed != NULL && d->remote != NULL, &ctx, DTR_ERR_NOMEM,
                "no memory for the state of dumps");
    d->on_error = dtr__opt_number(&world->options, DTR__OPT_DUMP) != 0;
    int number = (int)dtr__opt_number(&world->options, DTR__OPT_DUMP_SIGNAL);
    if (number == 0) {
        return DTR_OK;
    }
    DTR_REQUIRE(dtr__signal_take(number, &theirs), &ctx, DTR_ERR_ARG,
                "DTR_DUMP_SIGNAL=%d is no signal that a program can go on after; SIGUSR1 is %d, "
                "SIGUSR2 %d",
                number, SIGUSR1, SIGUSR2);
    if (theirs) {
        DTR_WARN(world,
                 "the program has a handler for signal %d, which stays: DTR_DUMP_SIGNAL=%d "
                 "has no effect",
                 number, number);
        return DTR_OK;
    }
    d->signal = number;
    d->signals = dtr__signal_count(number);
    return DTR_OK;
}

void dtr__dump_close(dtr_world *world) {
    struct dtr__dump *d = world->diagnosis.dump;
    if (d != NULL) {
        if (d->signal != 0) {
            dtr__signal_drop(d->signal);
        }
        pthread_mutex_destroy(&d->lock);
        free(d->asked);
        free(d->remote);
        free(d->failed);
        free(d);
        world->diagnosis.dump = NULL;
    }
}
