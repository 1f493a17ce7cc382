/* The schedule of one collective: a list of sends, receives, waits and local steps that is built
 * once and then executed in order, stopping (never blocking) at a wait that is not satisfied. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/signature.h"
#include "core/team.h"
#include "core/work.h"
#include "failure/mismatch.h"
#include "kernels/kernels.h"
#include "mpi_internal.h"

/* Transfers of at least this size count as moving for 2 ms and a nanosecond per byte. */
static const double PACE_LEAST_S = 2e-3, PACE_PER_BYTE_S = 1e-9;
enum { PACE_MIN = 64 << 10, PACE_EVERY = 32 };

enum {
    STAGING_ALIGN = 4096,
    DOUBT_AFTER = 128 /* polls of one receive before looking what its sender does instead */
};

size_t dtr__mpi_piece_count(size_t nbytes) {
    return nbytes == 0 ? 1 : (nbytes - 1) / DTR__MPI_PIECE_MAX + 1;
}

int dtr__mpi_piece(size_t nbytes, size_t index, size_t *offset) {
    *offset = index * DTR__MPI_PIECE_MAX;
    size_t left = nbytes - *offset;
    return (int)(left < DTR__MPI_PIECE_MAX ? left : DTR__MPI_PIECE_MAX);
}

dtr__mpi_sched *dtr__mpi_sched_new(void) {
    return calloc(1, sizeof(dtr__mpi_sched));
}

void dtr__mpi_sched_free(dtr__mpi_sched *s) {
    if (s == NULL) {
        return;
    }
    free(s->steps);
    free(s->transfers);
    free(s->sources);
    free(s->slices);
    free(s->staging);
    free(s->signatures);
    free(s);
}

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 32)) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ (x >> 29);
}

static void rewind_to_start(dtr__mpi_sched *s, const dtr_group *group, const dtr__call *c,
                            uint64_t seq) {
    s->no_memory = s->unexpected = false;
    s->at = 0;
    s->waiting = SIZE_MAX;
    s->pace = (dtr__mpi_pace){ 0 };
    /* The group's number too: messages left over from a broken group can outlive its communicator.
     */
    s->seed = mix(mix(seq ^ mix(group->uid)) ^ c->fingerprint);
}

static int tag_of(const dtr__mpi_sched *s, int nbytes) {
    uint64_t value = mix(s->seed + (uint64_t)nbytes) >> 20;
    return DTR__MPI_TAG_COLLECTIVE | (int)(value % DTR__MPI_TAG_VALUES);
}

void dtr__mpi_sched_begin(dtr__mpi_sched *s, const dtr_group *group, const dtr__call *c,
                          uint64_t seq) {
    rewind_to_start(s, group, c, seq);
    s->n_steps = s->n_transfers = s->n_sources = 0;
    s->built_for = 0;
    s->dtype = c->dtype;
    s->op = dtr__kernel_op(group, c);
    s->divisor = c->divisor > 0 ? c->divisor : group->size;
    s->premul = c->premul;
}

void dtr__mpi_sched_again(dtr__mpi_sched *s, const dtr_group *group, const dtr__call *c,
                          uint64_t seq) {
    rewind_to_start(s, group, c, seq);
    for (size_t i = 0; i < s->n_transfers; i++) {
        s->transfers[i].tag = tag_of(s, s->transfers[i].nbytes);
    }
}

/* The array with room for entry number n; unchanged, with no_memory set, when there is none. */
static void *grow(dtr__mpi_sched *s, void *array, size_t *cap, size_t n, size_t entry) {
    if (n < *cap) {
        return array;
    }
    size_t want = n + n / 2 + 64;
    void *larger = want < UINT32_MAX ? realloc(array, want * entry) : NULL; /* 32-bit indices */
    if (larger == NULL) {
        s->no_memory = true;
        return array;
    }
    *cap = want;
    return larger;
}

char *dtr__mpi_stage(dtr__mpi_sched *s, size_t nbytes) {
    if (nbytes > s->cap_staging || s->staging == NULL) {
        size_t size = (nbytes / STAGING_ALIGN + 1) * STAGING_ALIGN;
        free(s->staging);
        s->staging = aligned_alloc(STAGING_ALIGN, size);
        s->cap_staging = s->staging != NULL ? size : 0;
        s->no_memory |= s->staging == NULL;
    }
    return s->staging;
}

size_t *dtr__mpi_slices(dtr__mpi_sched *s, int n) {
    s->slices = grow(s, s->slices, &s->cap_slices, (size_t)n, sizeof *s->slices);
    return s->no_memory ? NULL : s->slices;
}

static void add_step(dtr__mpi_sched *s, dtr__mpi_step step) {
    s->steps = grow(s, s->steps, &s->cap_steps, s->n_steps, sizeof *s->steps);
    if (!s->no_memory) {
        s->steps[s->n_steps++] = step;
    }
}

/* A transfer to or from `memory`, in as many pieces as it takes. */
static void add_transfers(dtr__mpi_sched *s, bool is_send, const void *memory, size_t nbytes,
                          int peer) {
    size_t n = dtr__mpi_piece_count(nbytes), offset;
    for (size_t i = 0; i < n; i++) {
        int length = dtr__mpi_piece(nbytes, i, &offset);
        s->transfers =
            grow(s, s->transfers, &s->cap_transfers, s->n_transfers, sizeof *s->transfers);
        if (s->no_memory) {
            return;
        }
        dtr__mpi_step step = { .kind = is_send ? DTR__MPI_SEND : DTR__MPI_RECV,
                               .first = (uint32_t)s->n_transfers };
        if (nbytes != 0) {
            step.dst = (char *)(uintptr_t)memory + offset;
        }
        s->transfers[s->n_transfers++] = (dtr__mpi_transfer){
            .request = DTR__NO_PENDING,
            .peer = peer,
            .nbytes = length,
            .tag = tag_of(s, length),
            .is_send = is_send,
        };
        add_step(s, step);
    }
}

void dtr__mpi_send(dtr__mpi_sched *s, const void *src, size_t nbytes, int peer) {
    add_transfers(s, true, src, nbytes, peer);
}

void dtr__mpi_send_accepted(dtr__mpi_sched *s, const void *src, size_t nbytes, int peer) {
    const size_t from = s->n_transfers;
    add_transfers(s, true, src, nbytes, peer);
    for (size_t i = from; i < s->n_transfers; i++) {
        s->transfers[i].accepted = true;
    }
}

void dtr__mpi_recv(dtr__mpi_sched *s, void *dst, size_t nbytes, int peer) {
    add_transfers(s, false, dst, nbytes, peer);
}

size_t dtr__mpi_mark(const dtr__mpi_sched *s) {
    return s->n_transfers;
}

void dtr__mpi_wait(dtr__mpi_sched *s, size_t first, size_t last) {
    if (first < last) {
        add_step(s, (dtr__mpi_step){
                        .kind = DTR__MPI_WAIT, .first = (uint32_t)first, .last = (uint32_t)last });
    }
}

void dtr__mpi_wait_all(dtr__mpi_sched *s) {
    dtr__mpi_wait(s, 0, s->n_transfers);
}

void dtr__mpi_copy(dtr__mpi_sched *s, void *dst, const void *src, size_t nbytes) {
    if (dst != src && nbytes != 0) {
        add_step(s, (dtr__mpi_step){ .kind = DTR__MPI_COPY, .n = nbytes, .dst = dst, .src = src });
    }
}

/* Rows that touch are one. */
void dtr__mpi_copy_rows(dtr__mpi_sched *s, dtr__mpi_step_kind kind, void *dst, const void *src,
                        size_t n_rows, size_t nbytes, size_t pitch) {
    if (nbytes == pitch || n_rows <= 1) {
        dtr__mpi_copy(s, dst, src, nbytes * n_rows);
    } else if (nbytes != 0) {
        add_step(s, (dtr__mpi_step){ .kind = kind,
                                     .first = (uint32_t)n_rows,
                                     .n = nbytes,
                                     .pitch = pitch,
                                     .dst = dst,
                                     .src = src });
    }
}

void dtr__mpi_premul(dtr__mpi_sched *s, void *dst, const void *src, size_t count) {
    if (count != 0) {
        add_step(s, (dtr__mpi_step){ .kind = DTR__MPI_PREMUL, .n = count, .dst = dst, .src = src });
    }
}

void dtr__mpi_fill(dtr__mpi_sched *s, void *dst, size_t count) {
    if (count != 0) {
        add_step(s, (dtr__mpi_step){ .kind = DTR__MPI_FILL, .n = count, .dst = dst });
    }
}

void dtr__mpi_reduce(dtr__mpi_sched *s, void *dst, size_t count, int n_sources, int divisor) {
    add_step(s, (dtr__mpi_step){ .kind = DTR__MPI_REDUCE,
                                 .divisor = divisor,
                                 .first = (uint32_t)s->n_sources,
                                 .last = (uint32_t)(s->n_sources + (size_t)n_sources),
                                 .n = count,
                                 .dst = dst });
}

void dtr__mpi_source(dtr__mpi_sched *s, const void *src) {
    s->sources = grow(s, s->sources, &s->cap_sources, s->n_sources, sizeof *s->sources);
    if (!s->no_memory) {
        s->sources[s->n_sources++] = src;
    }
}

void dtr__mpi_compare(dtr__mpi_sched *s) {
    add_step(s, (dtr__mpi_step){ .kind = DTR__MPI_COMPARE });
}

/* ---- execution ---- */

/* The transport's code. */
static int post(dtr__mpi_sched *s, const dtr__mpi_step *step, const dtr_group *group) {
    dtr__mpi_transfer *t = &s->transfers[step->first];
    const int code =
        t->is_send
            ? dtr__transport_send(group, step->dst, t->nbytes, t->peer, t->tag,
                                  t->accepted ? DTR__SEND_ACCEPTED : DTR__SEND_PLAIN, &t->request)
            : dtr__transport_recv(group, step->dst, t->nbytes, t->peer, t->tag, &t->request);
    if (code != MPI_SUCCESS) {
        t->request = DTR__NO_PENDING;
    }
    return code;
}

static dtr_status disagree(const dtr__mpi_transfer *t, const dtr_work *w) {
    dtr__error_context ctx = dtr__work_context(w);
    DTR_TRY(dtr__find_mismatch(w));
    return DTR_FAIL(&ctx, DTR_ERR_MISMATCH,
                    "rank %d is in another call, or gave another count, dtype, operator or root: "
                    "its message of %d bytes for this call never came, but a later one did; "
                    "compare the calls of the two ranks, or run with DTR_DEBUG=detail, which names "
                    "the difference before data moves",
                    dtr__reported_rank(w->group, t->peer), t->nbytes);
}

/* A complete transfer that failed, that was found never to have been sent, or that brought another
 * number of bytes than agreed (then the tags of two different calls were equal). */
static dtr_status judge(const dtr__mpi_transfer *t, int code, const dtr__arrival *arrival,
                        const dtr_work *w) {
    if (code != MPI_SUCCESS) {
        return dtr__transport_was_cut(w->group, code) ? disagree(t, w)
                                                      : dtr__transport_failed(w, code, "MPI_Test");
    }
    const bool never_came =
        !t->is_send && t->doubted && dtr__transport_was_cancelled(w->group, arrival);
    const int got = t->is_send ? t->nbytes : dtr__transport_nbytes(w->group, arrival);
    return never_came || got != t->nbytes ? disagree(t, w) : DTR_OK;
}

/* A receive that takes long: is a later message of that rank here already? Messages of a pair keep
 * their order, so if the receive can then still be cancelled, its message was never sent: the rank
 * is in another call. Tags hold a hash of the call and the length, so that such messages do not
 * meet: some MPI libraries end the process when a message does not fit its receive. */
static dtr_status doubt(const dtr_group *group, const dtr_work *w, dtr__mpi_transfer *t) {
    int there = 0;
    dtr__arrival later;
    int code = dtr__transport_probe(group, t->peer, MPI_ANY_TAG, &there, &later);
    const int tag = code == MPI_SUCCESS && there ? dtr__transport_tag(group, &later) : -1;
    if (tag >= DTR__MPI_TAG_COLLECTIVE && tag < DTR__MPI_TAG_END) {
        code = dtr__transport_cancel(group, &t->request);
        t->doubted = code == MPI_SUCCESS;
    }
    return code == MPI_SUCCESS ? DTR_OK : dtr__transport_failed(w, code, "MPI_Iprobe");
}

bool dtr__mpi_pace_moves(dtr__mpi_pace *pace, size_t nbytes) {
    if (nbytes < PACE_MIN || pace->polls % PACE_EVERY != 0) {
        return false;
    }
    double now = dtr__now();
    if (pace->until == 0) {
        pace->until = now + PACE_LEAST_S + (double)nbytes * PACE_PER_BYTE_S;
    }
    return now < pace->until;
}

/* A transfer is not complete: is there reason to doubt it, or to poll on eagerly? */
static dtr_status linger(dtr__mpi_sched *s, dtr__mpi_transfer *t, const dtr_group *group,
                         dtr_work *w) {
    s->pace.polls++;
    w->moved |= dtr__mpi_pace_moves(&s->pace, (size_t)t->nbytes);
    bool look = !t->is_send && !t->doubted && s->pace.polls % DOUBT_AFTER == 0;
    return look ? doubt(group, w, t) : DTR_OK;
}

void dtr__mpi_run_rows(const dtr__mpi_step *step) {
    const size_t from = step->kind == DTR__MPI_PACK ? step->pitch : step->n;
    const size_t to = step->kind == DTR__MPI_PACK ? step->n : step->pitch;
    for (size_t i = 0; i < step->first; i++) {
        memcpy((char *)step->dst + i * to, (const char *)step->src + i * from, step->n);
    }
}

/* Steps that need nobody else. */
static void run_local(const dtr__mpi_sched *s, const dtr__mpi_step *step) {
    if (step->kind == DTR__MPI_COPY) {
        memcpy(step->dst, step->src, step->n);
    } else if (step->kind == DTR__MPI_PACK || step->kind == DTR__MPI_UNPACK) {
        dtr__mpi_run_rows(step);
    } else if (step->kind == DTR__MPI_REDUCE) {
        dtr__reduce(step->dst, &s->sources[step->first], (int)(step->last - step->first), step->n,
                    s->dtype, s->op, step->divisor, NULL);
    } else if (step->kind == DTR__MPI_FILL) {
        dtr__fill_identity(step->dst, step->n, step->n, s->dtype, s->op);
    } else if (s->dtype == DTR_F32_INDEX) {
        dtr__copy_clean(step->dst, step->src, step->n, s->dtype);
    } else {
        dtr__premul(step->dst, step->src, step->n, s->dtype, s->premul);
    }
}

/* One poll of the transfers of a WAIT. What ends otherwise than it should is kept for resolve. */
static int poll_wait(dtr__mpi_sched *s, const dtr_group *group, const dtr__mpi_step *step) {
    if (s->waiting == SIZE_MAX) {
        s->waiting = step->first;
    }
    for (; s->waiting < step->last && !s->unexpected; s->waiting++) {
        dtr__mpi_transfer *t = &s->transfers[s->waiting];
        int complete = 0, got = t->nbytes;
        if (dtr__pending_is_none(&t->request)) {
            continue;
        }
        s->code = dtr__transport_test(group, &t->request, &complete, &s->arrival);
        if (s->code == MPI_SUCCESS && !complete) {
            return 0;
        }
        if (s->code == MPI_SUCCESS && !t->is_send) {
            got = dtr__transport_nbytes(group, &s->arrival);
        }
        s->unexpected = s->code != MPI_SUCCESS || got != t->nbytes || t->doubted;
        if (s->unexpected) {
            return -1;
        }
    }
    if (s->unexpected) {
        return -1;
    }
    s->waiting = SIZE_MAX;
    return 1;
}

int dtr__mpi_sched_poll(dtr__mpi_sched *s, const dtr_group *group) {
    for (; s->at < s->n_steps; s->at++) {
        const dtr__mpi_step *step = &s->steps[s->at];
        int found = 1;
        if (step->kind == DTR__MPI_WAIT) {
            found = poll_wait(s, group, step);
        } else if (step->kind == DTR__MPI_SEND || step->kind == DTR__MPI_RECV) {
            s->code = post(s, step, group);
            found = s->code == MPI_SUCCESS ? 1 : -1; /* it is tried again, for the message */
        } else if (step->kind == DTR__MPI_COMPARE) {
            found = -1;
        } else {
            run_local(s, step);
        }
        if (found != 1) {
            return found;
        }
    }
    return 1;
}

/* What a poll has left to the work: a comparison, or an answer that is an error unless a transfer
 * that was doubted has come after all. */
static dtr_status resolve(dtr__mpi_sched *s, const dtr_work *w) {
    const dtr__mpi_step *step = &s->steps[s->at];
    if (step->kind == DTR__MPI_COMPARE) {
        s->at++;
        return dtr__mpi_compare_signatures(s, w);
    }
    if (step->kind != DTR__MPI_WAIT) {
        return dtr__transport_failed(w, s->code,
                                     step->kind == DTR__MPI_SEND ? "MPI_Isend" : "MPI_Irecv");
    }
    s->unexpected = false;
    return judge(&s->transfers[s->waiting++], s->code, &s->arrival, w);
}

dtr_status dtr__mpi_sched_run(dtr__mpi_sched *s, const dtr_group *group, dtr_work *w, bool *done) {
    for (;;) {
        const size_t at = s->at, waiting = s->waiting;
        const int found = dtr__mpi_sched_poll(s, group);
        if (s->at != at || s->waiting != waiting) {
            s->pace = (dtr__mpi_pace){ 0 };
            w->moved = true;
        }
        *done = found == 1;
        if (found >= 0) {
            return *done ? DTR_OK : linger(s, &s->transfers[s->waiting], group, w);
        }
        DTR_TRY(resolve(s, w));
    }
}

void dtr__mpi_sched_waits_for(const dtr__mpi_sched *s, const dtr_group *group, char *text,
                              size_t cap) {
    size_t used = 0, named = 0;
    if (s->at >= s->n_steps || s->steps[s->at].kind != DTR__MPI_WAIT) {
        return;
    }
    for (uint32_t i = s->steps[s->at].first; i < s->steps[s->at].last; i++) {
        const dtr__mpi_transfer *t = &s->transfers[i];
        bool first = !dtr__pending_is_none(&t->request);
        for (uint32_t j = s->steps[s->at].first; j < i && first; j++) {
            first = dtr__pending_is_none(&s->transfers[j].request) ||
                    s->transfers[j].peer != t->peer || s->transfers[j].is_send != t->is_send;
        }
        if (!first || used + 1 >= cap) {
            continue;
        }
        int n = snprintf(text + used, cap - used, "%srank %d (world %d) has not %s",
                         named++ ? "; " : "", dtr__reported_rank(group, t->peer),
                         group->world_ranks[t->peer],
                         t->is_send ? "taken what this rank sent" : "sent its part");
        used += n < 0 ? 0 : (size_t)n;
    }
}

/* ---- giving up ---- */

bool dtr__mpi_request_end(const dtr_group *g, dtr__pending *request, bool is_send,
                          dtr__mpi_state *state) {
    dtr__arrival nothing;
    if (dtr__pending_is_none(request)) {
        return true;
    }
    if (request->tcp != NULL) {
        dtr__tcp_abandon(g->world->mpi.tcp, &request->tcp);
        return true;
    }
    /* Cancelling a send is not supported by one MPI library and needs the peer in the other. */
    if (!is_send) {
        (void)dtr__transport_cancel(g, request);
    }
    double start = dtr__now(), now;
    do {
        int complete = 0;
        if (dtr__transport_test(g, request, &complete, &nothing) != MPI_SUCCESS || complete) {
            *request = DTR__NO_PENDING;
            return true;
        }
        now = dtr__now();
    } while (now - start < state->cancel_patience);
    state->cancel_patience -= now - start;
    return false;
}

void dtr__mpi_sched_abandon(dtr__mpi_sched *s) {
    bool touched = false, declaring = false;
    for (size_t i = 0; i < s->n_steps; i++) {
        const dtr__mpi_step *step = &s->steps[i];
        if (step->kind != DTR__MPI_SEND && step->kind != DTR__MPI_RECV) {
            continue;
        }
        dtr__pending *request = &s->transfers[step->first].request;
        const char *data = step->dst;
        if (!dtr__pending_is_none(request)) {
            touched |= data >= s->staging && data < s->staging + s->cap_staging;
            declaring = true;
            dtr__transport_forget(request);
        }
    }
    if (touched) {
        s->staging = NULL;
    }
    if (declaring) {
        s->signatures = NULL;
    }
    dtr__mpi_sched_free(s);
}

bool dtr__mpi_sched_cancel(const dtr_group *g, dtr__mpi_sched *s, dtr__mpi_state *state) {
    bool all = true;
    for (size_t i = 0; i < s->n_transfers; i++) {
        dtr__mpi_transfer *t = &s->transfers[i];
        /* Open MPI takes a receive that is cancelled twice out of its list twice. */
        all &= dtr__mpi_request_end(g, &t->request, t->is_send || t->doubted, state);
    }
    return all;
}
