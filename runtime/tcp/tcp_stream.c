/* Frames: what a connection takes of those that wait, and what it has brought. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tcp_internal.h"

enum { READS_PER_POLL = 16 }; /* of one connection, so that others have their turn */

/* ---- out ---- */

static void begin_frame(dtr__peer *p, dtr__tcp_op *op, dtr__frame head, const char *payload) {
    p->writing.head = head;
    p->writing.head_left = sizeof head;
    p->writing.payload = payload;
    p->writing.payload_left = payload != NULL ? head.nbytes : 0;
    p->writing.op = op;
}

/* Short frames before pieces of long messages. False: nothing waits. */
static bool next_frame(dtr__peer *p) {
    dtr__tcp_op *op = p->frames.first;
    if (p->matched - p->matched_reported >= DTR__TCP_WINDOW / 4) {
        p->matched_reported = p->matched;
        begin_frame(p, NULL, (dtr__frame){ DTR__FRAME_CREDIT, .nbytes = p->matched }, NULL);
    } else if (op != NULL) {
        const dtr__frame head = {
            op->frame,   op->tag,
            op->channel, op->frame == DTR__FRAME_ACCEPT ? op->wanted : op->nbytes,
            op->id,      op->other
        };
        const bool whole = op->frame == DTR__FRAME_EAGER || op->frame == DTR__FRAME_NOTE;
        begin_frame(p, op, head, whole ? op->data : NULL);
    } else if ((op = p->sending.first) != NULL) {
        const size_t left = op->wanted - op->done;
        const size_t n = left < DTR__TCP_CHUNK ? left : DTR__TCP_CHUNK;
        begin_frame(p, op, (dtr__frame){ DTR__FRAME_DATA, .nbytes = n, .to_op = op->other },
                    op->data + op->done);
    }
    return op != NULL || p->writing.head_left > 0;
}

/* The frame has left. */
static void end_frame(dtr__tcp *t, dtr__peer *p) {
    dtr__tcp_op *op = p->writing.op;
    p->writing.op = NULL;
    free(p->writing.spill);
    p->writing.spill = NULL;
    if (op == NULL) {
        return;
    }
    if (op->state == DTR__OP_SENDING) {
        op->done += p->writing.head.nbytes;
        if (op->done == op->wanted) {
            dtr__op_unlink(op);
            dtr__op_done(t, op);
        }
        return;
    }
    dtr__op_unlink(op);
    if (op->frame == DTR__FRAME_OFFER) {
        op->state = DTR__OP_OFFERED;
        dtr__op_append(&p->offered, op);
    } else if (op->frame == DTR__FRAME_ACCEPT && op->wanted > 0) {
        op->state = DTR__OP_RECEIVING;
        dtr__op_append(&p->receiving, op);
    } else {
        dtr__op_done(t, op);
    }
}

/* What the socket takes of the frame at hand; false: no more just now. */
static bool write_some(dtr__tcp *t, int rank) {
    dtr__peer *p = &t->peer[rank];
    struct iovec part[2] = {
        { (char *)&p->writing.head + sizeof p->writing.head - p->writing.head_left,
          p->writing.head_left },
        { (void *)(uintptr_t)p->writing.payload, p->writing.payload_left },
    };
    struct msghdr m = { .msg_iov = part, .msg_iovlen = p->writing.payload_left > 0 ? 2 : 1 };
    const ssize_t n = sendmsg(p->out->fd, &m, MSG_NOSIGNAL);
    if (n < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            dtr__tcp_end_peer(t, rank, strerror(errno));
        }
        return n < 0 && errno == EINTR && p->out != NULL;
    }
    const size_t head = (size_t)n < p->writing.head_left ? (size_t)n : p->writing.head_left;
    p->writing.head_left -= head;
    p->writing.payload += p->writing.payload != NULL ? (size_t)n - head : 0;
    p->writing.payload_left -= (size_t)n - head;
    if (p->writing.head_left == 0 && p->writing.payload_left == 0) {
        end_frame(t, p);
        return true;
    }
    return false;
}

void dtr__tcp_write(dtr__tcp *t, int rank) {
    dtr__peer *p = &t->peer[rank];
    if (p->out == NULL) {
        t->wanting |= p->ended_ns == 0;
        return;
    }
    if (!p->out->ready) {
        return;
    }
    bool goes_on = true;
    while (goes_on && (p->writing.head_left > 0 || p->writing.payload_left > 0 || next_frame(p))) {
        goes_on = write_some(t, rank);
    }
    if (p->out != NULL) {
        dtr__tcp_want_to_write(t, p->out, !goes_on);
    }
}

bool dtr__tcp_spill(dtr__peer *p) {
    const size_t n = p->writing.payload_left;
    p->writing.op = NULL;
    if (n > 0) {
        char *spill = malloc(n);
        if (spill == NULL) {
            return false;
        }
        memcpy(spill, p->writing.payload, n);
        p->writing.payload = p->writing.spill = spill;
    }
    return true;
}

/* ---- in ---- */

/* Where the next byte of what follows a frame goes; NULL: nowhere. */
static char *place_of(const dtr__conn *c) {
    const size_t at = c->frame.nbytes - c->left;
    return c->op != NULL     ? c->op->data + c->op->done + at
           : c->into != NULL ? c->into->data + at
           : c->note != NULL ? c->note + at
                             : NULL;
}

/* Frames at the front of the buffer; false: one of them makes no sense. */
static bool parse(dtr__tcp *t, dtr__conn *c) {
    size_t at = 0;
    bool sane = true;
    for (;;) {
        if (c->left > 0) {
            const size_t n = c->n_in - at < c->left ? c->n_in - at : c->left;
            char *to = place_of(c);
            if (to != NULL && n > 0) {
                memcpy(to, c->in + at, n);
            }
            at += n;
            c->left -= n;
            if (c->left > 0) {
                break;
            }
            dtr__tcp_finish(t, c);
        } else if (c->n_in - at >= sizeof c->frame) {
            memcpy(&c->frame, c->in + at, sizeof c->frame);
            at += sizeof c->frame;
            c->n_frames++;
            sane = dtr__tcp_begin(t, c);
            if (!sane || c->fd < 0) {
                break;
            }
        } else {
            break;
        }
    }
    memmove(c->in, c->in + at, c->n_in - at);
    c->n_in -= at;
    return sane;
}

/* Long parts go straight to their place. */
static ssize_t read_some(dtr__conn *c, bool *straight) {
    char *to = c->n_in == 0 && c->left >= c->cap_in ? place_of(c) : NULL;
    *straight = to != NULL;
    return *straight ? recv(c->fd, to, c->left, 0)
                     : recv(c->fd, c->in + c->n_in, c->cap_in - c->n_in, 0);
}

/* The other side has closed it. */
static void end_of(dtr__tcp *t, dtr__conn *c, const char *why) {
    const int rank = c->rank;
    const bool used = c->n_frames > 0;
    dtr__tcp_close(t, c);
    if (used) {
        dtr__tcp_end_peer(t, rank, why);
    }
}

void dtr__tcp_read(dtr__tcp *t, dtr__conn *c) {
    for (int i = 0; i < READS_PER_POLL && c->fd >= 0; i++) {
        bool straight;
        const ssize_t n = read_some(c, &straight);
        if (n <= 0) {
            if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
                end_of(t, c, n == 0 ? "closed by the other side" : strerror(errno));
            }
            return;
        }
        if (straight) {
            c->left -= (size_t)n;
            if (c->left == 0) {
                dtr__tcp_finish(t, c);
            }
            continue;
        }
        const bool full = c->n_in + (size_t)n == c->cap_in;
        c->n_in += (size_t)n;
        if (!parse(t, c)) {
            end_of(t, c, "it has sent what is no message of this library");
            return;
        }
        if (!full) {
            return; /* that was all; else epoll says so again */
        }
    }
}
