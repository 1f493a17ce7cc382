/* What carries the messages of this folder's schedules, which never block: MPI, or TCP in a world
 * without it. Ranks are those of the group; codes are MPI's, or those of TCP, of which 0 is success
 * too. Inline, as small operations ask in every poll. */
#ifndef DTR_MPI_TRANSPORT_H
#define DTR_MPI_TRANSPORT_H

#include <mpi.h>

#include "core/team.h"
#include "tcp/tcp.h"

_Static_assert(MPI_SUCCESS == 0, "what TCP says of success");

/* A message under way. */
typedef struct dtr__pending {
    MPI_Request mpi;
    dtr__tcp_op *tcp;
} dtr__pending;
#define DTR__NO_PENDING ((dtr__pending){ MPI_REQUEST_NULL, NULL })

/* What is known of a message that is here. */
typedef struct dtr__arrival {
    MPI_Status mpi;
    dtr__tcp_arrival tcp;
} dtr__arrival;

/* Not posted, or complete. */
static inline bool dtr__pending_is_none(const dtr__pending *r) {
    return r->mpi == MPI_REQUEST_NULL && r->tcp == NULL;
}

/* PLAIN: complete when `data` may change; ACCEPTED: when a receive has it; AT_ONCE: as PLAIN, small
 * and rare, and here however many others nobody receives. */
typedef enum dtr__send_mode {
    DTR__SEND_PLAIN = DTR__TCP_PLAIN,
    DTR__SEND_ACCEPTED = DTR__TCP_ACCEPTED,
    DTR__SEND_AT_ONCE = DTR__TCP_AT_ONCE
} dtr__send_mode;

/* ---- over TCP (mpi_transport.c) ---- */
int dtr__transport_tcp_send(const dtr_group *g, const void *data, int nbytes, int peer, int tag,
                            dtr__send_mode mode, dtr__pending *r);
int dtr__transport_tcp_recv(const dtr_group *g, void *data, int nbytes, int peer, int tag,
                            dtr__pending *r);
int dtr__transport_tcp_probe(const dtr_group *g, int peer, int tag, int *there, dtr__arrival *a);
/* The receive of a message that a probe has found; and, where it is here as a whole, its end. */
int dtr__transport_tcp_take(const dtr_group *g, const dtr__arrival *a, void *data, int nbytes,
                            dtr__pending *r);
int dtr__transport_tcp_take_all(const dtr_group *g, const dtr__arrival *a, void *data, int nbytes);

/* ---- over whichever there is ---- */

static inline int dtr__transport_send(const dtr_group *g, const void *data, int nbytes, int peer,
                                      int tag, dtr__send_mode mode, dtr__pending *r) {
    if (g->world->mpi.tcp != NULL) {
        return dtr__transport_tcp_send(g, data, nbytes, peer, tag, mode, r);
    }
    return mode == DTR__SEND_ACCEPTED
               ? DTR_INSIDE(MPI_Issend, data, nbytes, MPI_BYTE, peer, tag, g->comm, &r->mpi)
               : DTR_INSIDE(MPI_Isend, data, nbytes, MPI_BYTE, peer, tag, g->comm, &r->mpi);
}

/* `peer` may be MPI_ANY_SOURCE. */
static inline int dtr__transport_recv(const dtr_group *g, void *data, int nbytes, int peer, int tag,
                                      dtr__pending *r) {
    return g->world->mpi.tcp != NULL
               ? dtr__transport_tcp_recv(g, data, nbytes, peer, tag, r)
               : DTR_INSIDE(MPI_Irecv, data, nbytes, MPI_BYTE, peer, tag, g->comm, &r->mpi);
}

/* What is complete is none afterwards, and `a` tells of what was received. */
static inline int dtr__transport_test(const dtr_group *g, dtr__pending *r, int *complete,
                                      dtr__arrival *a) {
    return r->tcp != NULL ? dtr__tcp_test(g->world->mpi.tcp, &r->tcp, complete, &a->tcp)
                          : DTR_INSIDE(MPI_Test, &r->mpi, complete, &a->mpi);
}

/* The same of `n`, at one look at what has come: the code of each and, of what is complete, what is
 * known of it. */
enum { DTR__TRANSPORT_SOME = 64 };
void dtr__transport_test_some(const dtr_group *g, dtr__pending *const *r, int n, int *codes,
                              dtr__arrival *a);

/* Bytes of a message that has been received. */
static inline int dtr__transport_nbytes(const dtr_group *g, const dtr__arrival *a) {
    int nbytes = 0;
    if (g->world->mpi.tcp != NULL) {
        return (int)a->tcp.nbytes;
    }
    MPI_Get_count(&a->mpi, MPI_BYTE, &nbytes);
    return nbytes;
}

static inline int dtr__transport_source(const dtr_group *g, const dtr__arrival *a) {
    return g->world->mpi.tcp != NULL ? dtr__group_rank_of(g, a->tcp.source) : a->mpi.MPI_SOURCE;
}

static inline int dtr__transport_tag(const dtr_group *g, const dtr__arrival *a) {
    return g->world->mpi.tcp != NULL ? a->tcp.tag : a->mpi.MPI_TAG;
}

/* Complete, as dtr__transport_cancel has ended it. */
static inline bool dtr__transport_was_cancelled(const dtr_group *g, const dtr__arrival *a) {
    int cancelled = 0;
    if (g->world->mpi.tcp != NULL) {
        return a->tcp.cancelled;
    }
    MPI_Test_cancelled(&a->mpi, &cancelled);
    return cancelled != 0;
}

/* Is a message here that no receive has? `peer` and `tag` may be any. */
static inline int dtr__transport_probe(const dtr_group *g, int peer, int tag, int *there,
                                       dtr__arrival *a) {
    return g->world->mpi.tcp != NULL ? dtr__transport_tcp_probe(g, peer, tag, there, a)
                                     : DTR_INSIDE(MPI_Iprobe, peer, tag, g->comm, there, &a->mpi);
}

/* Receives a message that a probe has found, and that was sent at once. */
static inline int dtr__transport_take(const dtr_group *g, const dtr__arrival *a, void *data,
                                      int nbytes) {
    return g->world->mpi.tcp != NULL
               ? dtr__transport_tcp_take_all(g, a, data, nbytes)
               : DTR_INSIDE(MPI_Recv, data, nbytes, MPI_BYTE, a->mpi.MPI_SOURCE, a->mpi.MPI_TAG,
                            g->comm, MPI_STATUS_IGNORE);
}

/* A message from anybody, which no other receive gets: over TCP because the group's progress lock
 * is held meanwhile. */
typedef struct dtr__claim {
    MPI_Message mpi;
    dtr__arrival tcp;
} dtr__claim;
static inline int dtr__transport_claim(const dtr_group *g, int tag, int *there, dtr__claim *c) {
    return g->world->mpi.tcp != NULL
               ? dtr__transport_tcp_probe(g, MPI_ANY_SOURCE, tag, there, &c->tcp)
               : DTR_INSIDE(MPI_Improbe, MPI_ANY_SOURCE, tag, g->comm, there, &c->mpi,
                            MPI_STATUS_IGNORE);
}

static inline int dtr__transport_recv_claimed(const dtr_group *g, dtr__claim *c, void *data,
                                              int nbytes, dtr__pending *r) {
    return g->world->mpi.tcp != NULL
               ? dtr__transport_tcp_take(g, &c->tcp, data, nbytes, r)
               : DTR_INSIDE(MPI_Imrecv, data, nbytes, MPI_BYTE, &c->mpi, &r->mpi);
}

/* Asks for the end of a receive; a test says whether that has come. */
static inline int dtr__transport_cancel(const dtr_group *g, dtr__pending *r) {
    if (r->tcp != NULL) {
        dtr__tcp_cancel(g->world->mpi.tcp, r->tcp);
        return MPI_SUCCESS;
    }
    return DTR_INSIDE(MPI_Cancel, &r->mpi);
}

/* Leaves it to itself: its memory stays in use. Over TCP nothing is ever left. */
static inline void dtr__transport_forget(dtr__pending *r) {
    DTR_INSIDE(MPI_Request_free, &r->mpi);
}

/* A message was longer than what was to receive it, and MPI says so. */
static inline bool dtr__transport_was_cut(const dtr_group *g, int code) {
    int class = MPI_SUCCESS;
    if (g->world->mpi.tcp == NULL) {
        MPI_Error_class(code, &class);
    }
    return class == MPI_ERR_TRUNCATE;
}

/* What a code says, as the error of a work; `what`: the call, where it is MPI. */
dtr_status dtr__transport_failed(const dtr_work *w, int code, const char *what);

#endif /* DTR_MPI_TRANSPORT_H */
