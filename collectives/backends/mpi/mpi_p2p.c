/* Point to point. One header message per operation carries what the sender sends (dtype, count,
 * call site) and up to a few KiB of payload; a larger payload follows on a tag that the header
 * names. The receiver posts a receive for the header, which keeps MPI's order of messages,
 * compares, and only then lets MPI write into the user's buffer. When the two disagree both sides
 * learn of it: the receiver sends a refusal and swallows the payload, so that the sender's transfer
 * ends too; of a long payload only a first short piece, after which the sender looks whether it was
 * refused. */
#include <stdlib.h>
#include <string.h>

#include "core/call_site.h"
#include "core/team.h"
#include "core/work.h"
#include "mpi_internal.h"

enum {
    INLINE_MAX = 4096, /* payload that travels in the header message */
    LONG_PAYLOAD = 4 << 20,
    FIRST_PIECE = 64 << 10, /* of a long payload; complete when the receiver has accepted it */
    REFUSAL_EVERY = 64      /* polls of an unfinished send between two probes for a refusal */
};

typedef struct header {
    dtr__terms terms;
    uint64_t group;   /* dtr_group.uid */
    uint64_t serial;  /* of the sender, names the message in a refusal */
    uint32_t payload; /* tag of the payload, 0: it is in this message */
} header;

typedef struct refusal {
    dtr__terms terms;
    uint64_t serial;
} refusal;

struct dtr__mpi_p2p {
    dtr__message base;                /* announced: the header is here and fits */
    struct dtr__mpi_p2p *next, *prev; /* state->live or state->stuck */
    bool refused;                     /* send: the receiver's terms are in base.other */
    bool matched;                     /* receive of the fast path: MPI has given the message, */
    int source, failed;               /* ... from `source`; failed: what MPI returned there */
    size_t posted;                    /* payload bytes given to MPI so far */
    dtr__mpi_pace pace;
    uint64_t serial;
    int payload;
    MPI_Request head, body;
    struct {
        header header;
        char payload[INLINE_MAX];
    } message;
};

struct dtr__mpi_loose {
    MPI_Request request;
    bool is_send;
    void *memory; /* freed with it, may be NULL */
};

/* ---- memory ---- */

/* A new message, put at *tail; NULL when out of memory. */
static dtr__mpi_p2p *add(dtr__mpi_state *state, const dtr_p2p *op, size_t index, void ***tail) {
    const size_t zeroed = offsetof(dtr__mpi_p2p, message);
    dtr__mpi_p2p *p = dtr__message_new(&state->pool, sizeof *p, zeroed, op, index);
    if (p == NULL) {
        return NULL;
    }
    p->head = p->body = MPI_REQUEST_NULL;
    p->next = state->live;
    if (p->next != NULL) {
        p->next->prev = p;
    }
    state->live = p;
    **tail = p;
    *tail = &p->base.sibling;
    return p;
}

static void unlink_live(dtr__mpi_state *state, dtr__mpi_p2p *p) {
    if (p->prev != NULL) {
        p->prev->next = p->next;
    } else {
        state->live = p->next;
    }
    if (p->next != NULL) {
        p->next->prev = p->prev;
    }
}

static void give_back(dtr__mpi_state *state, dtr__mpi_p2p *p) {
    unlink_live(state, p);
    dtr__message_free(&state->pool, p);
}

/* What of a payload goes into its first message; the rest is cut at DTR__MPI_PIECE_MAX. */
static size_t first_piece(size_t nbytes) {
    return nbytes > LONG_PAYLOAD ? FIRST_PIECE : nbytes;
}

/* ---- texts ---- */

static void note_site(const dtr__call *c, dtr__mpi_p2p *p) {
    memcpy(p->base.own.site, dtr__call_site_cached(c), DTR__SITE_MAX);
}

static dtr_status mpi_failed(const dtr_work *w, int code, const char *call, int line) {
    dtr__error_context ctx = dtr__work_context(w);
    return dtr__error_mpi(&ctx, code, call, __FILE__, line);
}
#define P2P_MPI(w, name, ...)                               \
    do {                                                    \
        int code_ = DTR_INSIDE(name, __VA_ARGS__);          \
        if (code_ != MPI_SUCCESS) {                         \
            return mpi_failed((w), code_, #name, __LINE__); \
        }                                                   \
    } while (0)

/* ---- refusals ---- */

/* Requests that outlive their work: tested now and then, at the latest at the group's end. */
static void sweep_loose(dtr__mpi_state *state) {
    size_t kept = 0;
    for (size_t i = 0; i < state->n_loose; i++) {
        int complete = 0;
        if (DTR_INSIDE(MPI_Test, &state->loose[i].request, &complete, MPI_STATUS_IGNORE) !=
                MPI_SUCCESS ||
            complete) {
            free(state->loose[i].memory);
        } else {
            state->loose[kept++] = state->loose[i];
        }
    }
    state->n_loose = kept;
}

static dtr__mpi_loose *new_loose(dtr__mpi_state *state, bool is_send, void *memory) {
    if (state->n_loose == state->cap_loose) {
        size_t cap = state->cap_loose * 2 + 8;
        dtr__mpi_loose *larger = realloc(state->loose, cap * sizeof *larger);
        if (larger == NULL) {
            return NULL;
        }
        state->loose = larger;
        state->cap_loose = cap;
    }
    dtr__mpi_loose *l = &state->loose[state->n_loose];
    *l = (dtr__mpi_loose){ MPI_REQUEST_NULL, is_send, memory };
    return l;
}

/* Best effort: whatever fails here, this side already reports the mismatch. */
static void refuse(const dtr_group *group, dtr__mpi_state *state, const dtr__mpi_p2p *p) {
    const header *h = &p->message.header;
    refusal *r = malloc(sizeof *r);
    dtr__mpi_loose *l = r == NULL ? NULL : new_loose(state, true, r);
    if (l == NULL) {
        free(r);
        return;
    }
    *r = (refusal){ p->base.own, h->serial };
    if (DTR_INSIDE(MPI_Isend, r, sizeof *r, MPI_BYTE, p->base.peer, DTR__MPI_REFUSAL, group->comm,
                   &l->request) != MPI_SUCCESS) {
        free(r);
        return;
    }
    state->n_loose++;
    size_t nbytes = h->terms.count * dtr_dtype_size((dtr_dtype)h->terms.dtype);
    nbytes = first_piece(nbytes);
    void *nowhere = malloc(nbytes);
    l = nowhere == NULL ? NULL : new_loose(state, false, nowhere);
    if (l == NULL || DTR_INSIDE(MPI_Irecv, nowhere, (int)nbytes, MPI_BYTE, p->base.peer,
                                (int)h->payload, group->comm, &l->request) != MPI_SUCCESS) {
        free(nowhere);
        return;
    }
    state->n_loose++;
}

/* Takes in refusals of messages this rank has sent. */
static dtr_status look_for_refusals(const dtr_group *group, dtr__mpi_state *state,
                                    const dtr_work *w) {
    for (;;) {
        int there = 0;
        MPI_Status status;
        refusal r;
        P2P_MPI(w, MPI_Iprobe, MPI_ANY_SOURCE, DTR__MPI_REFUSAL, group->comm, &there, &status);
        if (!there) {
            return DTR_OK;
        }
        P2P_MPI(w, MPI_Recv, &r, sizeof r, MPI_BYTE, status.MPI_SOURCE, DTR__MPI_REFUSAL,
                group->comm, MPI_STATUS_IGNORE);
        for (dtr__mpi_p2p *p = state->live; p != NULL; p = p->next) {
            if (p->base.is_send && p->serial == r.serial && p->base.peer == status.MPI_SOURCE) {
                p->refused = true;
                p->base.other = r.terms;
            }
        }
    }
}

/* ---- one operation ---- */

/* Gives MPI the next piece of the payload. */
static dtr_status post_body(const dtr_group *group, const dtr_work *w, dtr__mpi_p2p *p) {
    size_t offset = 0, left = p->base.nbytes - p->posted;
    int length =
        p->posted == 0 ? (int)first_piece(p->base.nbytes) : dtr__mpi_piece(left, 0, &offset);
    char *at = p->base.data + p->posted;
    if (!p->base.is_send) {
        P2P_MPI(w, MPI_Irecv, at, length, MPI_BYTE, p->base.peer, p->payload, group->comm,
                &p->body);
    } else if ((size_t)length < left && p->posted == 0) {
        P2P_MPI(w, MPI_Issend, at, length, MPI_BYTE, p->base.peer, p->payload, group->comm,
                &p->body);
    } else {
        P2P_MPI(w, MPI_Isend, at, length, MPI_BYTE, p->base.peer, p->payload, group->comm,
                &p->body);
    }
    p->posted += (size_t)length;
    return DTR_OK;
}

/* The first message, or the receive for it; what MPI says. */
static int send_head(const dtr_group *group, dtr__mpi_state *state, const dtr__call *c,
                     dtr__mpi_p2p *p) {
    header *h = &p->message.header;
    note_site(c, p);
    *h = (header){ .terms = p->base.own, .group = group->uid };
    size_t nbytes = sizeof *h;
    if (p->base.nbytes <= INLINE_MAX) {
        if (p->base.nbytes != 0) {
            memcpy(p->message.payload, p->base.data, p->base.nbytes);
        }
        nbytes += p->base.nbytes;
        p->posted = p->base.nbytes;
    } else {
        p->serial = ++state->sends;
        p->payload = DTR__MPI_TAG_PAYLOAD | (int)(p->serial % (DTR__MPI_TAG_VALUES - 1));
        h->serial = p->serial;
        h->payload = (uint32_t)p->payload;
    }
    return DTR_INSIDE(MPI_Isend, &p->message, (int)nbytes, MPI_BYTE, p->base.peer,
                      DTR__MPI_TAG_HEADER | p->base.tag, group->comm, &p->head);
}

static int recv_head(const dtr_group *group, dtr__mpi_p2p *p) {
    int from = p->base.peer == DTR_ANY_SOURCE ? MPI_ANY_SOURCE : p->base.peer;
    return DTR_INSIDE(MPI_Irecv, &p->message, sizeof p->message, MPI_BYTE, from,
                      DTR__MPI_TAG_HEADER | p->base.tag, group->comm, &p->head);
}

static dtr_status post(const dtr_group *group, dtr__mpi_state *state, const dtr_work *w,
                       dtr__mpi_p2p *p) {
    if (p->base.is_send) {
        P2P_MPI(w, send_head, group, state, &w->call, p);
        return p->payload != 0 ? post_body(group, w, p) : DTR_OK;
    }
    P2P_MPI(w, recv_head, group, p);
    return DTR_OK;
}

/* Payload pieces one after the other; *done when the last has ended. A refused send goes no
 * further. */
static dtr_status move_body(const dtr_group *group, dtr__mpi_state *state, dtr_work *w,
                            dtr__mpi_p2p *p, bool *done) {
    *done = false;
    for (;;) {
        int complete = 1;
        if (p->body != MPI_REQUEST_NULL) {
            P2P_MPI(w, MPI_Test, &p->body, &complete, MPI_STATUS_IGNORE);
            p->pace.polls++;
        }
        if (p->base.is_send && p->payload != 0 &&
            (complete || p->pace.polls % REFUSAL_EVERY == 0)) {
            DTR_TRY(look_for_refusals(group, state, w));
        }
        if (!complete || p->refused) {
            w->moved |= dtr__mpi_pace_moves(&p->pace, p->base.nbytes);
            return DTR_OK;
        }
        if (p->posted == p->base.nbytes) {
            *done = true;
            return DTR_OK;
        }
        DTR_TRY(post_body(group, w, p));
        w->moved = true;
    }
}

static dtr_status move_send(const dtr_group *group, dtr__mpi_state *state, dtr_work *w,
                            dtr__mpi_p2p *p, bool *done) {
    int complete = 1;
    *done = false;
    if (p->failed != MPI_SUCCESS) {
        return mpi_failed(w, p->failed, "MPI_Test", __LINE__);
    }
    if (p->head != MPI_REQUEST_NULL) {
        P2P_MPI(w, MPI_Test, &p->head, &complete, MPI_STATUS_IGNORE);
    }
    DTR_TRY(move_body(group, state, w, p, done));
    if (p->refused) {
        return dtr__p2p_mismatch(w, &p->base);
    }
    *done &= complete != 0;
    return DTR_OK;
}

/* The header is here: does it fit? */
static dtr_status accept(const dtr_group *group, dtr__mpi_state *state, const dtr_work *w,
                         dtr__mpi_p2p *p, int source) {
    const header *h = &p->message.header;
    p->base.peer = source;
    p->base.announced = true;
    if (!dtr__terms_fit(&h->terms, &p->base.own)) {
        p->base.other = h->terms;
        note_site(&w->call, p);
        if (h->payload != 0) {
            refuse(group, state, p);
        }
        return dtr__p2p_mismatch(w, &p->base);
    }
    p->payload = (int)h->payload;
    if (p->payload == 0) {
        if (p->base.nbytes != 0) {
            memcpy(p->base.data, p->message.payload, p->base.nbytes);
        }
        p->posted = p->base.nbytes;
    }
    return DTR_OK;
}

static dtr_status move_recv(const dtr_group *group, dtr__mpi_state *state, dtr_work *w,
                            dtr__mpi_p2p *p, bool *done) {
    *done = false;
    if (p->failed != MPI_SUCCESS) {
        return mpi_failed(w, p->failed, "MPI_Test", __LINE__);
    }
    if (!p->base.announced) {
        int complete = p->matched;
        MPI_Status status = { .MPI_SOURCE = p->source };
        if (!p->matched) {
            P2P_MPI(w, MPI_Test, &p->head, &complete, &status);
        }
        if (!complete) {
            return DTR_OK;
        }
        p->matched = false;
        if (p->message.header.group != group->uid) {
            /* Left over from a broken group whose communicator was like this one. */
            return post(group, state, w, p);
        }
        DTR_TRY(accept(group, state, w, p, status.MPI_SOURCE));
    }
    DTR_TRY(move_body(group, state, w, p, done));
    if (*done && w->call.kind == DTR__K_RECV) {
        w->source = p->base.peer;
    }
    return DTR_OK;
}

/* ---- works: lists of operations ---- */

/* Ends an operation that is not complete; false when MPI keeps part of it. */
static bool end(dtr__mpi_state *state, dtr__mpi_p2p *p) {
    bool head = dtr__mpi_request_end(&p->head, p->base.is_send, state);
    bool body = dtr__mpi_request_end(&p->body, p->base.is_send, state);
    if (head && body) {
        give_back(state, p);
        return true;
    }
    unlink_live(state, p);
    p->prev = NULL;
    p->next = state->stuck;
    state->stuck = p;
    return false;
}

bool dtr__mpi_p2p_cancel(dtr__mpi_state *state, dtr_work *w) {
    bool all = true;
    for (dtr__mpi_p2p *p = w->request, *next; p != NULL; p = next) {
        next = p->base.sibling;
        all &= end(state, p);
    }
    w->request = NULL;
    return all;
}

/* A new message at the head of the work's. */
static dtr__mpi_p2p *put_first(dtr__mpi_state *state, dtr_work *w, const dtr_p2p *op,
                               size_t index) {
    void *first = NULL, **tail = &first;
    dtr__mpi_p2p *p = add(state, op, index, &tail);
    if (p != NULL) {
        *tail = w->request;
        w->request = p;
    }
    return p;
}

dtr_status dtr__mpi_p2p_add(const dtr_group *group, dtr__mpi_state *state, dtr_work *w,
                            const dtr_p2p *op, size_t index) {
    dtr__mpi_p2p *p = put_first(state, w, op, index);
    return p == NULL ? dtr__message_no_memory(w, index, sizeof *p) : post(group, state, w, p);
}

dtr_status dtr__mpi_p2p_claim(const dtr_group *group, dtr__mpi_state *state, dtr_work *w,
                              const dtr_p2p *op, size_t index, bool *claimed) {
    int there = 0;
    MPI_Message message;
    P2P_MPI(w, MPI_Improbe, MPI_ANY_SOURCE, DTR__MPI_TAG_HEADER | op->tag, group->comm, &there,
            &message, MPI_STATUS_IGNORE);
    *claimed = there != 0;
    if (!there) {
        return DTR_OK;
    }
    dtr__mpi_p2p *p = put_first(state, w, op, index);
    if (p == NULL) {
        return dtr__message_no_memory(w, index, sizeof *p);
    }
    P2P_MPI(w, MPI_Imrecv, &p->message, sizeof p->message, MPI_BYTE, &message, &p->head);
    return DTR_OK;
}

static dtr_status move(const dtr_group *group, dtr__mpi_state *state, dtr_work *w, bool *done) {
    dtr_status status = DTR_OK;
    for (void **link = &w->request; *link != NULL && status == DTR_OK;) {
        dtr__mpi_p2p *p = *link;
        bool ended = false;
        status = p->base.is_send ? move_send(group, state, w, p, &ended)
                                 : move_recv(group, state, w, p, &ended);
        if (ended) {
            w->moved = true;
            *link = p->base.sibling;
            give_back(state, p);
        } else {
            link = &p->base.sibling;
        }
    }
    *done = w->request == NULL && status == DTR_OK;
    return status;
}

dtr_status dtr__mpi_p2p_start(dtr_group *group, dtr__mpi_state *state, dtr_work *w, bool *done) {
    dtr__p2p_walk walk = dtr__p2p_begin(&w->call);
    void **tail = &w->request;
    for (const dtr_p2p *op; (op = dtr__p2p_next(&walk)) != NULL;) {
        dtr__mpi_p2p *p = add(state, op, walk.index, &tail);
        DTR_TRY(p == NULL ? dtr__message_no_memory(w, walk.index, sizeof *p)
                          : post(group, state, w, p));
    }
    return move(group, state, w, done);
}

dtr_status dtr__mpi_p2p_progress(dtr_group *group, dtr__mpi_state *state, dtr_work *w, bool *done) {
    if (state->n_loose != 0) {
        sweep_loose(state);
    }
    return move(group, state, w, done);
}

/* ---- the fast path: messages that fit into the first one ----
 * Posted like others, but polled without a work. What takes long or does not fit gets one. */

bool dtr__mpi_p2p_fast_accept(const dtr__call *c) {
    dtr_p2p single;
    size_t n = 0;
    const dtr_p2p *ops = dtr__p2p_list(c, &single, &n);
    for (size_t i = 0; i < n; i++) {
        if (ops[i].buf.count * dtr_dtype_size(ops[i].buf.dtype) > INLINE_MAX) {
            return false;
        }
    }
    return true;
}

/* False when nothing has been given to MPI. */
bool dtr__mpi_p2p_fast_start(const dtr_group *group, dtr__mpi_state *state, const dtr__call *c,
                             dtr__p2p_set which) {
    dtr__p2p_walk walk = dtr__p2p_begin(c);
    void **tail = &state->repeating;
    if (state->pool.n_idle < dtr__p2p_set_size(which)) {
        return false;
    }
    for (const dtr_p2p *op; (op = dtr__p2p_next(&walk)) != NULL;) {
        if (dtr__p2p_set_has(which, walk.index)) {
            dtr__mpi_p2p *p = add(state, op, walk.index, &tail); /* from the idle ones */
            p->failed = p->base.is_send ? send_head(group, state, c, p) : recv_head(group, p);
        }
    }
    return true;
}

/* 1: complete; 0: not yet; -1: not as it should be. */
static int look(const dtr_group *group, dtr__mpi_p2p *p) {
    int complete = 0;
    MPI_Status status;
    if (p->failed == MPI_SUCCESS) {
        p->failed = DTR_INSIDE(MPI_Test, &p->head, &complete, &status);
    }
    if (p->failed != MPI_SUCCESS || !complete || p->base.is_send) {
        return p->failed != MPI_SUCCESS ? -1 : complete;
    }
    const header *h = &p->message.header;
    p->matched = true;
    p->source = status.MPI_SOURCE;
    if (h->group != group->uid || !dtr__terms_fit(&h->terms, &p->base.own) || h->payload != 0) {
        return -1;
    }
    if (p->base.nbytes != 0) {
        memcpy(p->base.data, p->message.payload, p->base.nbytes);
    }
    return 1;
}

int dtr__mpi_p2p_fast_poll(const dtr_group *group, dtr__mpi_state *state) {
    for (void **link = &state->repeating; *link != NULL;) {
        dtr__mpi_p2p *p = *link;
        int found = look(group, p);
        if (found < 0) {
            return -1;
        }
        if (found == 0) {
            link = &p->base.sibling;
            continue;
        }
        *link = p->base.sibling;
        give_back(state, p);
    }
    return state->repeating == NULL;
}

void dtr__mpi_p2p_close(dtr__mpi_state *state, bool mpi_alive) {
    for (dtr__mpi_p2p *p = state->stuck, *next; p != NULL; p = next) {
        next = p->next;
        if (mpi_alive && !dtr__mpi_request_end(&p->body, p->base.is_send, state)) {
            MPI_Request_free(&p->body); /* in the user's memory */
        }
        if (!mpi_alive || dtr__mpi_request_end(&p->head, p->base.is_send, state)) {
            free(p);
        }
    }
    dtr__message_pool_close(&state->pool);
    for (size_t i = 0; i < state->n_loose; i++) {
        dtr__mpi_loose *l = &state->loose[i];
        /* The sender waits for a payload to be swallowed: it is cancelled last of all. */
        if (!mpi_alive || dtr__mpi_request_end(&l->request, true, state) ||
            dtr__mpi_request_end(&l->request, l->is_send, state)) {
            free(l->memory);
        }
    }
    free(state->loose);
}
