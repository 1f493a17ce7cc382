/* Small messages between ranks over the world's communicator: sent without waiting, taken when
 * somebody looks, and ignored by whoever they no longer concern. */
#ifndef DTR_POST_H
#define DTR_POST_H

#include "coll_internal.h"

/* Tags on world->comm. */
enum {
    DTR__TAG_MEET_UP = 0x4d01,
    DTR__TAG_MEET_DOWN = 0x4d02,
    DTR__TAG_NOTICE = 0x4d03,
    DTR__TAG_MONITOR = 0x4d04,
    DTR__TAG_EXCHANGE = 0x4d05
};

/* A message on its way out; its memory is needed until MPI is done with it. */
typedef struct dtr__letter {
    struct dtr__letter *next;
    MPI_Request request;
    _Alignas(8) unsigned char data[];
} dtr__letter;

/* The right to call MPI below MPI_THREAD_MULTIPLE, where one lock serialises it in the whole world.
 * Nothing at that level. */
void dtr__mpi_lock(dtr_world *world);
bool dtr__mpi_trylock(dtr_world *world); /* false too on a thread that may not call MPI at all */
void dtr__mpi_unlock(dtr_world *world);

/* The right is held for the rest. Send head and tail as one message; `out` keeps it until it has
 * gone. */
dtr_status dtr__post(dtr_world *world, dtr__letter **out, int to, int tag, const void *head,
                     size_t head_nbytes, const void *tail, size_t tail_nbytes);
/* Forget letters that have gone out. */
void dtr__post_reap(dtr__letter **out);
/* The same at the end of a world: letters under way get a moment. What nobody takes stays with
 * MPI, which cannot be made to give it back. */
void dtr__post_end(dtr__letter **out);
/* One message of a tag, if there is one: malloc'ed, with its sender; NULL otherwise. */
dtr_status dtr__receive(dtr_world *world, int tag, void **message, size_t *nbytes, int *from);

#endif /* DTR_POST_H */
