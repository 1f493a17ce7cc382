/* Point to point. One header message per operation carries what the sender sends (dtype, count,
 * call site) and a payload of up to `nodes_inline`; a larger one follows on a tag that the header
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
#include "engine/engine.h"
#include "mpi_internal.h"

enum {
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
    int source, failed;               /* of the header that is here; what the transport said last */
    uint32_t looked_in;               /* pass of the engine it was last looked at in */
    size_t posted;                    /* payload bytes given to MPI so far */
    dtr__mpi_pace pace;
    uint64_t serial;
    int payload;
    dtr__pending head, body;
    struct {
        header header;
        char payload[DTR__TUNE_INLINE_MAX]; /* written as far as a message has bytes */
    } message;
};

struct dtr__mpi_loose {
    dtr__pending request;
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
    p->head = p->body = DTR__NO_PENDING;
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

/* `name`: the call of MPI, where it is MPI. */
#define P2P_TRY(w, name, call)                              \
    do {                                                    \
        int code_ = (call);                                 \
        if (code_ != MPI_SUCCESS) {                         \
            return dtr__transport_failed((w), code_, name); \
        }                                                   \
    } while (0)

/* ---- refusals ---- */

/* Requests that outlive their work: tested now and then, at the latest at the group's end. */
static void sweep_loose(const dtr_group *group, dtr__mpi_state *state) {
    size_t kept = 0;
    for (size_t i = 0; i < state->n_loose; i++) {
        int complete = 0;
        dtr__arrival a;
        if (dtr__transport_test(group, &state->loose[i].request, &complete, &a) != MPI_SUCCESS ||
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
    *l = (dtr__mpi_loose){ DTR__NO_PENDING, is_send, memory };
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
    if (dtr__transport_send(group, r, sizeof *r, p->base.peer, DTR__MPI_REFUSAL, DTR__SEND_AT_ONCE,
                            &l->request) != MPI_SUCCESS) {
        free(r);
        return;
    }
    state->n_loose++;
    size_t nbytes = h->terms.count * dtr_dtype_size((dtr_dtype)h->terms.dtype);
    nbytes = first_piece(nbytes);
    void *nowhere = malloc(nbytes);
    l = nowhere == NULL ? NULL : new_loose(state, false, nowhere);
    if (l == NULL || dtr__transport_recv(group, nowhere, (int)nbytes, p->base.peer, (int)h->payload,
                                         &l->request) != MPI_SUCCESS) {
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
        dtr__arrival a;
        refusal r;
        P2P_TRY(w, "MPI_Iprobe",
                dtr__transport_probe(group, MPI_ANY_SOURCE, DTR__MPI_REFUSAL, &there, &a));
        if (!there) {
            return DTR_OK;
        }
        P2P_TRY(w, "MPI_Recv", dtr__transport_take(group, &a, &r, sizeof r));
        for (dtr__mpi_p2p *p = state->live; p != NULL; p = p->next) {
            if (p->base.is_send && p->serial == r.serial &&
                p->base.peer == dtr__transport_source(group, &a)) {
                p->refused = true;
                p->base.other = r.terms;
            }
        }
    }
}

/* ---- what has come ---- */

/* What a look at one of its requests, `r`, has found, which is none where it is complete. */
static void note(const dtr_group *group, dtr__mpi_p2p *p, const dtr__pending *r, int code,
                 const dtr__arrival *a) {
    p->failed = code != MPI_SUCCESS ? code : p->failed;
    if (r == &p->head && !p->base.is_send && dtr__pending_is_none(r) && code == MPI_SUCCESS) {
        p->source = dtr__transport_source(group, a);
    }
}

/* One request of it, which has just been posted. */
static int look_at(const dtr_group *group, dtr__mpi_p2p *p, dtr__pending *r) {
    int complete = 0;
    dtr__arrival a;
    note(group, p, r, dtr__transport_test(group, r, &complete, &a), &a);
    return p->failed;
}

/* All requests of `first` and of those begun after it, which a pass comes to next: a look costs a
 * call of the system for any number. An error need not end a receive from anybody: asked alone. */
static void look_from(const dtr_group *group, dtr__mpi_p2p *first) {
    dtr__pending *asked[DTR__TRANSPORT_SOME];
    dtr__mpi_p2p *of[DTR__TRANSPORT_SOME];
    int codes[DTR__TRANSPORT_SOME], n = 0;
    dtr__arrival arrivals[DTR__TRANSPORT_SOME];
    const bool alone = first->base.peer == DTR_ANY_SOURCE;
    for (dtr__mpi_p2p *p = first; p != NULL && n + 2 <= DTR__TRANSPORT_SOME;
         p = alone ? NULL : p->prev) {
        dtr__pending *both[] = { &p->head, &p->body };
        if (p->base.peer == DTR_ANY_SOURCE && !alone) {
            continue;
        }
        for (int i = 0; i < 2; i++) {
            if (!dtr__pending_is_none(both[i])) {
                of[n] = p;
                asked[n++] = both[i];
            }
        }
        p->looked_in = group->engine->pass;
    }
    dtr__transport_test_some(group, asked, n, codes, arrivals);
    for (int i = 0; i < n; i++) {
        note(group, of[i], asked[i], codes[i], &arrivals[i]);
    }
}

/* Once in a pass; what the transport has said of it. */
static int look_once(const dtr_group *group, dtr__mpi_p2p *p) {
    if (p->looked_in != group->engine->pass &&
        !(dtr__pending_is_none(&p->head) && dtr__pending_is_none(&p->body))) {
        look_from(group, p);
    }
    return p->failed;
}

/* ---- one operation ---- */

/* Gives MPI the next piece of the payload. */
static dtr_status post_body(const dtr_group *group, const dtr_work *w, dtr__mpi_p2p *p) {
    size_t offset = 0, left = p->base.nbytes - p->posted;
    int length =
        p->posted == 0 ? (int)first_piece(p->base.nbytes) : dtr__mpi_piece(left, 0, &offset);
    char *at = p->base.data + p->posted;
    if (!p->base.is_send) {
        P2P_TRY(w, "MPI_Irecv",
                dtr__transport_recv(group, at, length, p->base.peer, p->payload, &p->body));
    } else {
        const bool look_first = (size_t)length < left && p->posted == 0;
        P2P_TRY(w, look_first ? "MPI_Issend" : "MPI_Isend",
                dtr__transport_send(group, at, length, p->base.peer, p->payload,
                                    look_first ? DTR__SEND_ACCEPTED : DTR__SEND_PLAIN, &p->body));
    }
    p->posted += (size_t)length;
    return DTR_OK;
}

/* The first message, or the receive for it; what the transport says. */
static int send_head(const dtr_group *group, dtr__mpi_state *state, const dtr__call *c,
                     dtr__mpi_p2p *p) {
    header *h = &p->message.header;
    note_site(c, p);
    *h = (header){ .terms = p->base.own, .group = group->uid };
    size_t nbytes = sizeof *h;
    if (p->base.nbytes <= state->tuning.inline_most) {
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
    int code = dtr__transport_send(group, &p->message, (int)nbytes, p->base.peer,
                                   DTR__MPI_TAG_HEADER | p->base.tag, DTR__SEND_PLAIN, &p->head);
    return code == MPI_SUCCESS ? look_at(group, p, &p->head) : code;
}

/* The next pass looks at it: it is seldom here by now. */
static int recv_head(const dtr_group *group, dtr__mpi_p2p *p) {
    int from = p->base.peer == DTR_ANY_SOURCE ? MPI_ANY_SOURCE : p->base.peer;
    p->looked_in = group->engine->pass;
    return dtr__transport_recv(group, &p->message, sizeof p->message, from,
                               DTR__MPI_TAG_HEADER | p->base.tag, &p->head);
}

static dtr_status post(const dtr_group *group, dtr__mpi_state *state, const dtr_work *w,
                       dtr__mpi_p2p *p) {
    if (p->base.is_send) {
        P2P_TRY(w, "MPI_Isend", send_head(group, state, &w->call, p));
        return p->payload != 0 ? post_body(group, w, p) : DTR_OK;
    }
    P2P_TRY(w, "MPI_Irecv", recv_head(group, p));
    return DTR_OK;
}

/* Payload pieces one after the other; *done when the last has ended. A refused send goes no
 * further. */
static dtr_status move_body(const dtr_group *group, dtr__mpi_state *state, dtr_work *w,
                            dtr__mpi_p2p *p, bool *done) {
    *done = false;
    for (;;) {
        const bool complete = dtr__pending_is_none(&p->body);
        p->pace.polls += !complete;
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
    DTR_TRY(move_body(group, state, w, p, done));
    if (p->refused) {
        return dtr__p2p_mismatch(w, &p->base);
    }
    *done &= dtr__pending_is_none(&p->head);
    return DTR_OK;
}

/* The header is here: does it fit? */
static dtr_status accept_header(const dtr_group *group, dtr__mpi_state *state, const dtr_work *w,
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
    if (!p->base.announced) {
        if (!dtr__pending_is_none(&p->head)) {
            return DTR_OK;
        }
        if (p->message.header.group != group->uid) {
            /* Left over from a broken group whose communicator was like this one. */
            return post(group, state, w, p);
        }
        DTR_TRY(accept_header(group, state, w, p, p->source));
    }
    DTR_TRY(move_body(group, state, w, p, done));
    if (*done && w->call.kind == DTR__K_RECV) {
        w->source = p->base.peer;
    }
    return DTR_OK;
}

/* ---- works: lists of operations ---- */

/* Ends an operation that is not complete; false when MPI keeps part of it. */
static bool end(const dtr_group *group, dtr__mpi_state *state, dtr__mpi_p2p *p) {
    bool head = dtr__mpi_request_end(group, &p->head, p->base.is_send, state);
    bool body = dtr__mpi_request_end(group, &p->body, p->base.is_send, state);
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

bool dtr__mpi_p2p_cancel(const dtr_group *group, dtr__mpi_state *state, dtr_work *w) {
    bool all = true;
    for (dtr__mpi_p2p *p = w->request, *next; p != NULL; p = next) {
        next = p->base.sibling;
        all &= end(group, state, p);
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
    dtr__claim c;
    P2P_TRY(w, "MPI_Improbe",
            dtr__transport_claim(group, DTR__MPI_TAG_HEADER | op->tag, &there, &c));
    *claimed = there != 0;
    if (!there) {
        return DTR_OK;
    }
    dtr__mpi_p2p *p = put_first(state, w, op, index);
    if (p == NULL) {
        return dtr__message_no_memory(w, index, sizeof *p);
    }
    P2P_TRY(w, "MPI_Imrecv",
            dtr__transport_recv_claimed(group, &c, &p->message, sizeof p->message, &p->head));
    return DTR_OK;
}

static dtr_status move(const dtr_group *group, dtr__mpi_state *state, dtr_work *w, bool *done) {
    dtr_status status = DTR_OK;
    for (void **link = &w->request; *link != NULL && status == DTR_OK;) {
        dtr__mpi_p2p *p = *link;
        bool ended = false;
        P2P_TRY(w, "MPI_Test", look_once(group, p));
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
        sweep_loose(group, state);
    }
    return move(group, state, w, done);
}

/* ---- the fast path: messages that fit into the first one ----
 * Posted like others, but polled without a work. What takes long or does not fit gets one. */

bool dtr__mpi_p2p_fast_accept(const dtr__mpi_state *state, const dtr__call *c) {
    dtr_p2p single;
    size_t n = 0;
    const dtr_p2p *ops = dtr__p2p_list(c, &single, &n);
    for (size_t i = 0; i < n; i++) {
        if (ops[i].buf.count * dtr_dtype_size(ops[i].buf.dtype) > state->tuning.inline_most) {
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

int dtr__mpi_p2p_fast_message(const dtr_group *group, dtr__mpi_state *state, const dtr__call *c) {
    if (!dtr__mpi_p2p_fast_start(group, state, c, dtr__p2p_all(c))) {
        return -1;
    }
    dtr__mpi_p2p *p = state->repeating;
    const bool over = p->failed == MPI_SUCCESS && dtr__pending_is_none(&p->head);
    if (over) {
        state->repeating = NULL;
        give_back(state, p);
    }
    return over;
}

/* 1: complete; 0: not yet; -1: not as it should be. */
static int look(const dtr_group *group, dtr__mpi_p2p *p) {
    const int code = look_once(group, p);
    const bool here = dtr__pending_is_none(&p->head);
    if (code != MPI_SUCCESS || !here || p->base.is_send) {
        return code != MPI_SUCCESS ? -1 : here;
    }
    const header *h = &p->message.header;
    if (h->group != group->uid || !dtr__terms_fit(&h->terms, &p->base.own) || h->payload != 0) {
        return -1;
    }
    if (p->base.nbytes != 0) {
        memcpy(p->base.data, p->message.payload, p->base.nbytes);
    }
    return 1;
}

int dtr__mpi_p2p_fast_poll(const dtr_group *group, dtr__mpi_state *state) {
    group->engine->pass++;
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

void dtr__mpi_p2p_close(const dtr_group *group, dtr__mpi_state *state, bool alive) {
    for (dtr__mpi_p2p *p = state->stuck, *next; p != NULL; p = next) {
        next = p->next;
        if (alive && !dtr__mpi_request_end(group, &p->body, p->base.is_send, state)) {
            dtr__transport_forget(&p->body); /* in the user's memory */
        }
        if (!alive || dtr__mpi_request_end(group, &p->head, p->base.is_send, state)) {
            free(p);
        }
    }
    dtr__message_pool_close(&state->pool);
    for (size_t i = 0; i < state->n_loose; i++) {
        dtr__mpi_loose *l = &state->loose[i];
        /* The sender waits for a payload to be swallowed: it is cancelled last of all. */
        if (!alive || dtr__mpi_request_end(group, &l->request, true, state) ||
            dtr__mpi_request_end(group, &l->request, l->is_send, state)) {
            free(l->memory);
        }
    }
    free(state->loose);
}
