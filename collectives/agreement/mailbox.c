/* Delivery of small messages over the world's communicator, or its inbox where it has no MPI. */
#include <stdlib.h>
#include <string.h>

#include "agreement/mailbox.h"
#include "bootstrap/inbox.h"
#include "core/team.h"
#include "engine/engine.h"

/* ---- the right to call MPI ---- */

static dtr__progress_lock *mpi_lock_of(dtr_world *world) {
    /* NULL too while the world's own group is being made: nobody else is there yet. */
    return world->mpi.thread_level == MPI_THREAD_MULTIPLE ? NULL
                                                          : world->groups->own->engine->progress;
}

void dtr__mpi_lock(dtr_world *world) {
    dtr__progress_lock *lock = mpi_lock_of(world);
    if (lock != NULL) {
        dtr__progress_lock_acquire(world, lock);
    }
}

bool dtr__mpi_trylock(dtr_world *world) {
    if (world->mpi.thread_level == MPI_THREAD_MULTIPLE) {
        return true;
    }
    int is_main = 1;
    if (world->mpi.thread_level < MPI_THREAD_SERIALIZED) {
        MPI_Is_thread_main(&is_main);
    }
    dtr__progress_lock *lock = mpi_lock_of(world);
    return is_main && lock != NULL && dtr__progress_lock_try(lock);
}

void dtr__mpi_unlock(dtr_world *world) {
    dtr__progress_lock *lock = mpi_lock_of(world);
    if (lock != NULL) {
        dtr__progress_lock_release(lock);
    }
}

/* ---- control messages ---- */

dtr_status dtr__mailbox_send(dtr_world *world, dtr__control_message **out, int to, int tag,
                             const void *head, size_t head_nbytes, const void *tail,
                             size_t tail_nbytes) {
    dtr__error_context ctx = { .world = world, .operation = "message between ranks" };
    size_t nbytes = head_nbytes + tail_nbytes;
    if (world->mpi.inbox != NULL) { /* which keeps it until it has left */
        return dtr__inbox_send(world->mpi.inbox, to, tag, 0, head, head_nbytes, tail, tail_nbytes);
    }
    dtr__control_message *sent = malloc(sizeof(*sent) + nbytes);
    DTR_REQUIRE(sent != NULL, &ctx, DTR_ERR_NOMEM, "no memory for a message of %zu bytes", nbytes);
    memcpy(sent->data, head, head_nbytes);
    if (tail_nbytes > 0) {
        memcpy(sent->data + head_nbytes, tail, tail_nbytes);
    }
    int code = DTR_INSIDE(MPI_Isend, sent->data, (int)nbytes, MPI_BYTE, to, tag, world->mpi.comm,
                          &sent->request);
    if (code != MPI_SUCCESS) {
        free(sent);
        return dtr__error_mpi(&ctx, code, "MPI_Isend", __FILE__, __LINE__);
    }
    sent->next = *out;
    *out = sent;
    return DTR_OK;
}

void dtr__mailbox_reap(dtr__control_message **out) {
    for (dtr__control_message **at = out; *at != NULL;) {
        dtr__control_message *sent = *at;
        int gone = 0;
        DTR_INSIDE(MPI_Test, &sent->request, &gone, MPI_STATUS_IGNORE);
        if (gone) {
            *at = sent->next;
            free(sent);
        } else {
            at = &sent->next;
        }
    }
}

void dtr__mailbox_flush(dtr__control_message **out) {
    dtr__backoff backoff = { 0 };
    double end = dtr__now() + 0.2;
    for (dtr__mailbox_reap(out); *out != NULL && dtr__now() < end; dtr__mailbox_reap(out)) {
        dtr__backoff_pause(NULL, &backoff);
    }
}

/* Begin to receive one message, if there is one. */
static dtr_status begin_to_receive(dtr_world *world, dtr__arriving **in, int tag, bool *found) {
    dtr__error_context ctx = { .world = world, .operation = "message between ranks" };
    MPI_Comm comm = world->mpi.comm;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    int flag = 0, count = 0;
    int code = DTR_INSIDE(MPI_Improbe, MPI_ANY_SOURCE, tag, comm, &flag, &handle, &status);
    if (code != MPI_SUCCESS && !dtr__mpi_acknowledge(comm, code)) {
        return dtr__error_mpi(&ctx, code, "MPI_Improbe", __FILE__, __LINE__);
    }
    *found = code == MPI_SUCCESS && flag;
    if (!*found) {
        return DTR_OK;
    }
    DTR_MPI(&ctx, MPI_Get_count(&status, MPI_BYTE, &count));
    dtr__arriving *a = malloc(sizeof *a);
    void *data = malloc(count > 0 ? (size_t)count : 1);
    if (a == NULL || data == NULL) { /* take it all the same, or it is found again for ever */
        free(a);
        free(data);
        DTR_INSIDE(MPI_Mrecv, NULL, 0, MPI_BYTE, &handle, MPI_STATUS_IGNORE);
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for a message of %d bytes", count);
    }
    *a = (dtr__arriving){ .data = data, .nbytes = (size_t)count, .from = status.MPI_SOURCE };
    code = DTR_INSIDE(MPI_Imrecv, data, count, MPI_BYTE, &handle, &a->request);
    if (code != MPI_SUCCESS) {
        free(a);
        free(data);
        return dtr__error_mpi(&ctx, code, "MPI_Imrecv", __FILE__, __LINE__);
    }
    while (*in != NULL) {
        in = &(*in)->next;
    }
    *in = a;
    return DTR_OK;
}

/* Messages of one rank stay in their order. */
static bool has_earlier(const dtr__arriving *first, const dtr__arriving *a) {
    while (first != a && first->from != a->from) {
        first = first->next;
    }
    return first != a;
}

/* The first that is whole; NULL: none. */
static void *take_whole(dtr__arriving **in, size_t *nbytes, int *from) {
    void *data = NULL;
    for (dtr__arriving **at = in; *at != NULL && data == NULL;) {
        dtr__arriving *a = *at;
        int whole = 0, code = MPI_SUCCESS;
        if (!has_earlier(*in, a)) {
            code = DTR_INSIDE(MPI_Test, &a->request, &whole, MPI_STATUS_IGNORE);
        }
        if (code == MPI_SUCCESS && !whole) {
            at = &a->next;
            continue;
        }
        if (code == MPI_SUCCESS) {
            data = a->data;
            *nbytes = a->nbytes;
            *from = a->from;
        } else { /* its sender has failed */
            free(a->data);
        }
        *at = a->next;
        free(a);
    }
    return data;
}

dtr_status dtr__mailbox_receive(dtr_world *world, dtr__arriving **in, int tag, void **message,
                                size_t *nbytes, int *from) {
    *message = NULL;
    if (world->mpi.inbox != NULL) {
        return dtr__inbox_receive(world->mpi.inbox, tag, 0, -1, message, nbytes, from);
    }
    for (bool found = true; found && *message == NULL;) {
        DTR_TRY(begin_to_receive(world, in, tag, &found));
        *message = take_whole(in, nbytes, from);
    }
    return DTR_OK;
}

void dtr__mailbox_close(dtr__arriving **in) {
    size_t nbytes;
    int from;
    for (void *data; (data = take_whole(in, &nbytes, &from)) != NULL;) {
        free(data);
    }
    *in = NULL;
}
