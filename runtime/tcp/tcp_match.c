/* Messages and receives find each other, both in their order: a receive that is posted takes the
 * oldest message that fits it, a message that comes the oldest receive. */
#include <stdlib.h>
#include <string.h>

#include "tcp_internal.h"

enum { OVERHEAD = 64, NOTE_MOST = 1 << 30 }; /* of a message that waits, in bytes */

/* ---- ops ---- */

void dtr__op_append(dtr__op_list *list, dtr__tcp_op *op) {
    op->in = list;
    op->next = NULL;
    op->prev = list->last;
    *(list->last != NULL ? &list->last->next : &list->first) = op;
    list->last = op;
}

void dtr__op_unlink(dtr__tcp_op *op) {
    dtr__op_list *list = op->in;
    if (list == NULL) {
        return;
    }
    *(op->prev != NULL ? &op->prev->next : &list->first) = op->next;
    *(op->next != NULL ? &op->next->prev : &list->last) = op->prev;
    op->in = NULL;
    op->next = op->prev = NULL;
}

static void give_back(dtr__tcp *t, dtr__tcp_op *op) {
    op->next = t->idle;
    t->idle = op;
}

void dtr__op_done(dtr__tcp *t, dtr__tcp_op *op) {
    op->state = DTR__OP_DONE;
    if (op->owned) {
        t->n_notes--;
        free(op->data);
        give_back(t, op);
    }
}

static dtr__tcp_op *new_op(dtr__tcp *t, uint64_t channel, int peer, int tag, char *data,
                           size_t nbytes) {
    dtr__tcp_op *op = t->idle;
    if (op != NULL) {
        t->idle = op->next;
    } else if ((op = malloc(sizeof *op)) == NULL) {
        return NULL;
    }
    *op = (dtr__tcp_op){ .peer = peer,
                         .tag = tag,
                         .channel = channel,
                         .id = ++t->last_id,
                         .data = data,
                         .nbytes = nbytes };
    return op;
}

static dtr__tcp_op *find_op(const dtr__op_list *list, uint64_t id) {
    dtr__tcp_op *op = list->first;
    while (op != NULL && op->id != id) {
        op = op->next;
    }
    return op;
}

/* A frame of op's is to be written to its peer. */
static void queue(dtr__tcp *t, dtr__tcp_op *op, dtr__frame_kind frame) {
    dtr__peer *p = &t->peer[op->peer];
    op->state = DTR__OP_QUEUED;
    op->frame = frame;
    if (p->ended_ns != 0 && op->owned) {
        dtr__op_done(t, op);
        return;
    }
    dtr__op_append(&p->frames, op);
    dtr__tcp_write(t, op->peer);
}

/* ---- what has come and waits ---- */

static bool fits(int want, int have) {
    return want == DTR__TCP_ANY || want == have;
}

static dtr__arrived **find_arrived(dtr__tcp *t, uint64_t channel, int from, int tag) {
    dtr__arrived **at = &t->arrived;
    while (*at != NULL &&
           ((*at)->channel != channel || !fits(from, (*at)->from) || !fits(tag, (*at)->tag))) {
        at = &(*at)->next;
    }
    return at;
}

static dtr__arrived *take_arrived(dtr__tcp *t, dtr__arrived **at) {
    dtr__arrived *a = *at;
    *at = a->next;
    if (a->next == NULL) {
        t->arrived_end = at;
    }
    a->next = NULL;
    return a;
}

void dtr__tcp_forget(dtr__tcp *t, const dtr__arrived *a) {
    dtr__arrived **at = &t->arrived;
    while (*at != a) {
        at = &(*at)->next;
    }
    (void)take_arrived(t, at);
}

/* No receive has it: it goes to the end of the list, to be found in its order. */
static void keep_arrived(dtr__tcp *t, dtr__conn *c) {
    const dtr__frame *f = &c->frame;
    const bool eager = f->kind == DTR__FRAME_EAGER;
    dtr__arrived *a = malloc(sizeof *a + (eager ? f->nbytes : 0));
    if (a == NULL) {
        dtr__tcp_end_peer(t, c->rank, "no memory for a message of its");
        dtr__tcp_close(t, c);
        return;
    }
    *a = (dtr__arrived){ .from = c->rank,
                         .tag = f->tag,
                         .channel = f->channel,
                         .offer = eager ? 0 : f->from_op,
                         .nbytes = f->nbytes,
                         .whole = !eager || f->nbytes == 0 };
    *t->arrived_end = a;
    t->arrived_end = &a->next;
    c->into = a->whole ? NULL : a;
}

/* ---- a receive has its message ---- */

static void give_message(dtr__tcp_op *op, int from, int tag, size_t nbytes) {
    op->peer = from;
    op->tag = tag;
    op->got = nbytes;
    op->wanted = nbytes <= op->nbytes ? nbytes : 0;
}

/* Its place in the window is free again. */
static void count_matched(dtr__tcp *t, int from, size_t nbytes) {
    t->peer[from].matched += nbytes + OVERHEAD;
    if (t->peer[from].matched - t->peer[from].matched_reported >= DTR__TCP_WINDOW / 4) {
        dtr__tcp_write(t, from);
    }
}

/* An eager message that is here as a whole, and its receive. */
static void hand_over(dtr__tcp *t, dtr__arrived *a, dtr__tcp_op *op) {
    if (op != NULL) {
        if (op->wanted > 0) {
            memcpy(op->data, a->data, op->wanted);
        }
        dtr__op_done(t, op);
    }
    count_matched(t, a->from, a->nbytes);
    free(a);
}

static void accept_offer(dtr__tcp *t, dtr__tcp_op *op, uint64_t offer) {
    op->other = offer;
    queue(t, op, DTR__FRAME_ACCEPT);
}

static void match_arrived(dtr__tcp *t, dtr__tcp_op *op, dtr__arrived *a) {
    give_message(op, a->from, a->tag, a->nbytes);
    if (a->offer != 0) {
        accept_offer(t, op, a->offer);
        free(a);
    } else if (a->whole) {
        hand_over(t, a, op);
    } else {
        op->state = DTR__OP_FILLING;
        a->op = op;
    }
}

/* ---- frames ---- */

static dtr__tcp_op *find_posted(const dtr__tcp *t, const dtr__conn *c) {
    dtr__tcp_op *op = t->posted.first;
    while (op != NULL && (op->channel != c->frame.channel || !fits(op->peer, c->rank) ||
                          !fits(op->tag, c->frame.tag))) {
        op = op->next;
    }
    return op;
}

static bool take_message(dtr__tcp *t, dtr__conn *c) {
    const dtr__frame *f = &c->frame;
    dtr__tcp_op *op = find_posted(t, c);
    const bool eager = f->kind == DTR__FRAME_EAGER;
    if (eager && f->nbytes > DTR__TCP_EAGER) {
        return false;
    }
    c->left = eager ? f->nbytes : 0;
    if (op == NULL) {
        keep_arrived(t, c);
        return true;
    }
    dtr__op_unlink(op);
    give_message(op, c->rank, f->tag, f->nbytes);
    if (!eager) {
        accept_offer(t, op, f->from_op);
        return true;
    }
    if (op->wanted > 0) {
        op->state = DTR__OP_FILLING;
        c->op = op;
    } else {
        dtr__op_done(t, op);
    }
    count_matched(t, c->rank, f->nbytes);
    return true;
}

/* The other side wants what was offered. */
static void take_accept(dtr__tcp *t, const dtr__conn *c) {
    dtr__peer *p = &t->peer[c->rank];
    dtr__tcp_op *op = find_op(&p->offered, c->frame.to_op);
    if (op == NULL) {
        return; /* given up */
    }
    dtr__op_unlink(op);
    op->wanted = c->frame.nbytes <= op->nbytes ? c->frame.nbytes : op->nbytes;
    op->other = c->frame.from_op;
    if (op->wanted == 0) {
        dtr__op_done(t, op);
        return;
    }
    op->state = DTR__OP_SENDING;
    dtr__op_append(&p->sending, op);
    dtr__tcp_write(t, c->rank);
}

static bool take_data(dtr__tcp *t, dtr__conn *c) {
    c->op = find_op(&t->peer[c->rank].receiving, c->frame.to_op);
    c->left = c->frame.nbytes;
    return c->left > 0 && c->left <= DTR__TCP_CHUNK &&
           (c->op == NULL || c->left <= c->op->wanted - c->op->done);
}

static bool take_note(dtr__tcp *t, dtr__conn *c) {
    if (c->frame.nbytes > NOTE_MOST) {
        return false;
    }
    c->left = c->frame.nbytes;
    c->note = malloc(c->left > 0 ? c->left : 1);
    if (c->note == NULL) {
        dtr__tcp_end_peer(t, c->rank, "no memory for a message of its");
        dtr__tcp_close(t, c);
    } else if (c->left == 0) {
        dtr__tcp_finish(t, c);
    }
    return true;
}

bool dtr__tcp_begin(dtr__tcp *t, dtr__conn *c) {
    switch (c->frame.kind) {
    case DTR__FRAME_EAGER:
    case DTR__FRAME_OFFER:
        return take_message(t, c);
    case DTR__FRAME_ACCEPT:
        take_accept(t, c);
        return true;
    case DTR__FRAME_DATA:
        return take_data(t, c);
    case DTR__FRAME_NOTE:
        return take_note(t, c);
    case DTR__FRAME_CREDIT:
        t->peer[c->rank].matched_there = c->frame.nbytes;
        return true;
    default:
        return false;
    }
}

void dtr__tcp_finish(dtr__tcp *t, dtr__conn *c) {
    dtr__tcp_op *op = c->op;
    dtr__arrived *a = c->into;
    char *note = c->note;
    c->op = NULL;
    c->into = NULL;
    c->note = NULL;
    if (op != NULL) {
        op->done += c->frame.nbytes;
        if (op->done == op->wanted) {
            dtr__op_unlink(op);
            dtr__op_done(t, op);
        }
    } else if (a != NULL) {
        a->whole = true;
        if (a->op != NULL || a->dropped) {
            hand_over(t, a, a->op);
        }
    } else if (note != NULL) {
        if (t->take != NULL) {
            t->take(t->take_arg, c->rank, c->frame.tag, c->frame.channel, note, c->frame.nbytes);
        }
        free(note);
    }
}

/* ---- calls ---- */

int dtr__tcp_send(dtr__tcp *t, uint64_t channel, int to, int tag, const void *data, size_t nbytes,
                  dtr__tcp_mode mode, dtr__tcp_op **out) {
    pthread_mutex_lock(&t->lock);
    dtr__tcp_op *op = new_op(t, channel, to, tag, (char *)(uintptr_t)data, nbytes);
    if (op != NULL) {
        dtr__peer *p = &t->peer[to];
        const bool eager = nbytes <= DTR__TCP_EAGER && mode != DTR__TCP_ACCEPTED &&
                           (mode == DTR__TCP_AT_ONCE ||
                            p->sent - p->matched_there + nbytes + OVERHEAD <= DTR__TCP_WINDOW);
        p->sent += eager ? nbytes + OVERHEAD : 0;
        *out = op;
        queue(t, op, eager ? DTR__FRAME_EAGER : DTR__FRAME_OFFER);
    }
    pthread_mutex_unlock(&t->lock);
    return op != NULL ? 0 : -1;
}

int dtr__tcp_recv(dtr__tcp *t, uint64_t channel, int from, int tag, void *data, size_t nbytes,
                  dtr__tcp_op **out) {
    pthread_mutex_lock(&t->lock);
    dtr__tcp_op *op = new_op(t, channel, from, tag, data, nbytes);
    if (op != NULL) {
        dtr__arrived **at = find_arrived(t, channel, from, tag);
        *out = op;
        if (*at != NULL) {
            match_arrived(t, op, take_arrived(t, at));
        } else {
            op->state = DTR__OP_POSTED;
            dtr__op_append(&t->posted, op);
        }
    }
    pthread_mutex_unlock(&t->lock);
    return op != NULL ? 0 : -1;
}

bool dtr__tcp_probe(dtr__tcp *t, uint64_t channel, int from, int tag, dtr__tcp_arrival *a) {
    pthread_mutex_lock(&t->lock);
    const dtr__arrived *found = *find_arrived(t, channel, from, tag);
    const bool there = found != NULL && found->whole;
    if (there) {
        *a = (dtr__tcp_arrival){ found->from, found->tag, found->nbytes, false };
    }
    pthread_mutex_unlock(&t->lock);
    return there;
}

void dtr__tcp_cancel(dtr__tcp *t, dtr__tcp_op *op) {
    pthread_mutex_lock(&t->lock);
    if (op->state == DTR__OP_POSTED) {
        dtr__op_unlink(op);
        op->cancelled = true;
        dtr__op_done(t, op);
    }
    pthread_mutex_unlock(&t->lock);
}

/* What is being read for it goes nowhere. */
static void stop_reading(const dtr__tcp *t, const dtr__tcp_op *op) {
    dtr__conn *c = op->peer >= 0 ? t->peer[op->peer].in : NULL;
    if (c != NULL && c->op == op) {
        c->op = NULL;
    }
    if (c != NULL && c->into != NULL && c->into->op == op) {
        c->into->op = NULL;
        c->into->dropped = true;
    }
}

void dtr__tcp_abandon(dtr__tcp *t, dtr__tcp_op **at) {
    dtr__tcp_op *op = *at;
    pthread_mutex_lock(&t->lock);
    dtr__peer *p = op->peer >= 0 ? &t->peer[op->peer] : NULL;
    const bool is_written = p != NULL && p->writing.op == op;
    if (op->state == DTR__OP_QUEUED && op->frame == DTR__FRAME_EAGER && !is_written) {
        p->sent -= op->nbytes + OVERHEAD; /* it never was */
    }
    dtr__op_unlink(op);
    stop_reading(t, op);
    if (is_written && !dtr__tcp_spill(p)) {
        dtr__tcp_end_peer(t, op->peer, "no memory for the rest of a message");
    }
    give_back(t, op);
    *at = NULL;
    pthread_mutex_unlock(&t->lock);
}

dtr_status dtr__tcp_note(dtr__tcp *t, int to, int tag, uint64_t channel, const void *head,
                         size_t head_nbytes, const void *tail, size_t tail_nbytes) {
    const size_t nbytes = head_nbytes + tail_nbytes;
    char *data = malloc(nbytes > 0 ? nbytes : 1);
    pthread_mutex_lock(&t->lock);
    dtr__tcp_op *op = data != NULL ? new_op(t, channel, to, tag, data, nbytes) : NULL;
    if (op != NULL) {
        memcpy(data, head, head_nbytes);
        if (tail_nbytes > 0) {
            memcpy(data + head_nbytes, tail, tail_nbytes);
        }
        op->owned = true;
        t->n_notes++;
        queue(t, op, DTR__FRAME_NOTE);
    }
    pthread_mutex_unlock(&t->lock);
    if (op == NULL) {
        free(data);
        return DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for a message of %zu bytes", nbytes);
    }
    return DTR_OK;
}
