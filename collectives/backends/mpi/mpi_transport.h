/* What carries the messages of this folder's schedules, which never block: MPI. Ranks are those of
 * the group; codes are MPI's. Inline, as small operations ask in every poll. */
#ifndef DTR_MPI_TRANSPORT_H
#define DTR_MPI_TRANSPORT_H

#include <mpi.h>

#include "core/team.h"

/* A message under way. */
typedef struct dtr__pending {
    MPI_Request mpi;
} dtr__pending;
#define DTR__NO_PENDING ((dtr__pending){ MPI_REQUEST_NULL })

/* What is known of a message that is here. */
typedef struct dtr__arrival {
    MPI_Status mpi;
} dtr__arrival;

/* Not posted, or complete. */
static inline bool dtr__pending_is_none(const dtr__pending *r) {
    return r->mpi == MPI_REQUEST_NULL;
}

/* PLAIN: complete when `data` may change; ACCEPTED: when a receive has it. */
typedef enum dtr__send_mode { DTR__SEND_PLAIN, DTR__SEND_ACCEPTED } dtr__send_mode;

static inline int dtr__transport_send(const dtr_group *g, const void *data, int nbytes, int peer,
                                      int tag, dtr__send_mode mode, dtr__pending *r) {
    return mode == DTR__SEND_PLAIN
               ? DTR_INSIDE(MPI_Isend, data, nbytes, MPI_BYTE, peer, tag, g->comm, &r->mpi)
               : DTR_INSIDE(MPI_Issend, data, nbytes, MPI_BYTE, peer, tag, g->comm, &r->mpi);
}

/* `peer` may be MPI_ANY_SOURCE. */
static inline int dtr__transport_recv(const dtr_group *g, void *data, int nbytes, int peer, int tag,
                                      dtr__pending *r) {
    return DTR_INSIDE(MPI_Irecv, data, nbytes, MPI_BYTE, peer, tag, g->comm, &r->mpi);
}

/* A complete request is none afterwards, and `a` tells of what was received. */
static inline int dtr__transport_test(dtr__pending *r, int *complete, dtr__arrival *a) {
    return DTR_INSIDE(MPI_Test, &r->mpi, complete, &a->mpi);
}

/* Bytes of a message that has been received. */
static inline int dtr__transport_nbytes(const dtr__arrival *a) {
    int nbytes = 0;
    MPI_Get_count(&a->mpi, MPI_BYTE, &nbytes);
    return nbytes;
}

static inline int dtr__transport_source(const dtr__arrival *a) {
    return a->mpi.MPI_SOURCE;
}

static inline int dtr__transport_tag(const dtr__arrival *a) {
    return a->mpi.MPI_TAG;
}

/* Complete, as dtr__transport_cancel has ended it. */
static inline bool dtr__transport_was_cancelled(const dtr__arrival *a) {
    int cancelled = 0;
    MPI_Test_cancelled(&a->mpi, &cancelled);
    return cancelled != 0;
}

/* Is a message here that no receive has? `peer` and `tag` may be any. */
static inline int dtr__transport_probe(const dtr_group *g, int peer, int tag, int *there,
                                       dtr__arrival *a) {
    return DTR_INSIDE(MPI_Iprobe, peer, tag, g->comm, there, &a->mpi);
}

/* Receives a small message that a probe has found. */
static inline int dtr__transport_take(const dtr_group *g, const dtr__arrival *a, void *data,
                                      int nbytes) {
    return DTR_INSIDE(MPI_Recv, data, nbytes, MPI_BYTE, a->mpi.MPI_SOURCE, a->mpi.MPI_TAG, g->comm,
                      MPI_STATUS_IGNORE);
}

/* A message from anybody, taken out so that no other receive gets it. */
typedef struct dtr__claim {
    MPI_Message mpi;
} dtr__claim;
static inline int dtr__transport_claim(const dtr_group *g, int tag, int *there, dtr__claim *c) {
    return DTR_INSIDE(MPI_Improbe, MPI_ANY_SOURCE, tag, g->comm, there, &c->mpi, MPI_STATUS_IGNORE);
}

static inline int dtr__transport_recv_claimed(dtr__claim *c, void *data, int nbytes,
                                              dtr__pending *r) {
    return DTR_INSIDE(MPI_Imrecv, data, nbytes, MPI_BYTE, &c->mpi, &r->mpi);
}

/* Asks for the end of a receive; a test says whether that has come. */
static inline int dtr__transport_cancel(dtr__pending *r) {
    return DTR_INSIDE(MPI_Cancel, &r->mpi);
}

/* Leaves it to itself: its memory stays in use. */
static inline void dtr__transport_forget(dtr__pending *r) {
    DTR_INSIDE(MPI_Request_free, &r->mpi);
}

/* A message was longer than what was to receive it. */
static inline bool dtr__transport_was_cut(int code) {
    int class = MPI_SUCCESS;
    MPI_Error_class(code, &class);
    return class == MPI_ERR_TRUNCATE;
}

/* What a code says, as the error of a work. */
dtr_status dtr__transport_failed(const dtr_work *w, int code, const char *what);

#endif /* DTR_MPI_TRANSPORT_H */
