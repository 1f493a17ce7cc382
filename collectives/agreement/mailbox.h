/* Small messages between ranks over the world's communicator, or without MPI its inbox: sent
 * without waiting, received when a rank polls, and ignored by ranks that they no longer concern. */
#ifndef DTR_MAILBOX_H
#define DTR_MAILBOX_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

#include <dtr/world.h>

/* Tags on world->mpi.comm; without MPI DTR__TAG_EXCHANGE is one more. */
enum {
    DTR__TAG_AGREE_UP = 0x4d01,
    DTR__TAG_AGREE_DOWN = 0x4d02,
    DTR__TAG_NOTIFY = 0x4d03,
    DTR__TAG_KEY_VALUE = 0x4d05
};

/* A message on its way out; its memory is needed until MPI is done with it. */
typedef struct dtr__control_message {
    struct dtr__control_message *next;
    MPI_Request request;
    _Alignas(8) unsigned char data[];
} dtr__control_message;

/* A message on its way in: a large one needs its sender, which may be stopped. */
typedef struct dtr__arriving {
    struct dtr__arriving *next;
    MPI_Request request;
    void *data;
    size_t nbytes;
    int from;
} dtr__arriving;

/* The right to call MPI below MPI_THREAD_MULTIPLE, where one lock serialises it in the whole world.
 * Nothing at that level. */
void dtr__mpi_lock(dtr_world *world);
bool dtr__mpi_trylock(dtr_world *world); /* false too on a thread that may not call MPI at all */
void dtr__mpi_unlock(dtr_world *world);

/* The caller of what follows holds the right. Send head and tail as one message; `out` keeps it
 * until it has been sent. */
dtr_status dtr__mailbox_send(dtr_world *world, dtr__control_message **out, int to, int tag,
                             const void *head, size_t head_nbytes, const void *tail,
                             size_t tail_nbytes);
/* Free control messages that have been sent. */
void dtr__mailbox_reap(dtr__control_message **out);
/* The same at the end of a world: wait a moment for messages under way. What no rank receives stays
 * with MPI, which cannot be made to give it back. */
void dtr__mailbox_flush(dtr__control_message **out);
/* One message of a tag, if one is here as a whole: malloc'ed, with its sender; NULL otherwise. `in`
 * keeps those that are not, one list for each tag. */
dtr_status dtr__mailbox_receive(dtr_world *world, dtr__arriving **in, int tag, void **message,
                                size_t *nbytes, int *from);
/* At the end of a world, while MPI lives. What has not come by then stays with MPI. */
void dtr__mailbox_close(dtr__arriving **in);

#endif /* DTR_MAILBOX_H */
