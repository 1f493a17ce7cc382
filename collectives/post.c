/* Delivery of small messages over the world's communicator. */
#include <stdlib.h>
#include <string.h>

#include "groups.h"
#include "post.h"

/* ---- the right to call MPI ---- */

static dtr__latch *mpi_latch(dtr_world *world) {
    /* NULL too while the world's own group is being made: nobody else is there yet. */
    return world->thread_level == MPI_THREAD_MULTIPLE ? NULL : world->groups->own->progress;
}

void dtr__mpi_lock(dtr_world *world) {
    dtr__latch *latch = mpi_latch(world);
    if (latch != NULL) {
        dtr__latch_take(world, latch);
    }
}

bool dtr__mpi_trylock(dtr_world *world) {
    if (world->thread_level == MPI_THREAD_MULTIPLE) {
        return true;
    }
    int is_main = 1;
    if (world->thread_level < MPI_THREAD_SERIALIZED) {
        MPI_Is_thread_main(&is_main);
    }
    dtr__latch *latch = mpi_latch(world);
    return is_main && latch != NULL && dtr__latch_try(latch);
}

void dtr__mpi_unlock(dtr_world *world) {
    dtr__latch *latch = mpi_latch(world);
    if (latch != NULL) {
        dtr__latch_drop(latch);
    }
}

/* ---- letters ---- */

dtr_status dtr__post(dtr_world *world, dtr__letter **out, int to, int tag, const void *head,
                     size_t head_nbytes, const void *tail, size_t tail_nbytes) {
    dtr__error_context ctx = { .world = world, .operation = "message between ranks" };
    size_t nbytes = head_nbytes + tail_nbytes;
    dtr__letter *letter = malloc(sizeof(*letter) + nbytes);
    DTR_REQUIRE(letter != NULL, &ctx, DTR_ERR_NOMEM, "no memory for a message of %zu bytes",
                nbytes);
    memcpy(letter->data, head, head_nbytes);
    if (tail_nbytes > 0) {
        memcpy(letter->data + head_nbytes, tail, tail_nbytes);
    }
    int code = DTR_INSIDE(MPI_Isend, letter->data, (int)nbytes, MPI_BYTE, to, tag, world->comm,
                          &letter->request);
    if (code != MPI_SUCCESS) {
        free(letter);
        return dtr__error_mpi(&ctx, code, "MPI_Isend", __FILE__, __LINE__);
    }
    letter->next = *out;
    *out = letter;
    return DTR_OK;
}

void dtr__post_reap(dtr__letter **out) {
    for (dtr__letter **at = out; *at != NULL;) {
        dtr__letter *letter = *at;
        int gone = 0;
        DTR_INSIDE(MPI_Test, &letter->request, &gone, MPI_STATUS_IGNORE);
        if (gone) {
            *at = letter->next;
            free(letter);
        } else {
            at = &letter->next;
        }
    }
}

void dtr__post_end(dtr__letter **out) {
    dtr__backoff backoff = { 0 };
    double end = dtr__now() + 0.2;
    for (dtr__post_reap(out); *out != NULL && dtr__now() < end; dtr__post_reap(out)) {
        dtr__backoff_pause(NULL, &backoff);
    }
}

dtr_status dtr__receive(dtr_world *world, int tag, void **message, size_t *nbytes, int *from) {
    dtr__error_context ctx = { .world = world, .operation = "message between ranks" };
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    int flag = 0, count = 0;
    *message = NULL;
    DTR_MPI(&ctx, MPI_Improbe(MPI_ANY_SOURCE, tag, world->comm, &flag, &handle, &status));
    if (!flag) {
        return DTR_OK;
    }
    DTR_MPI(&ctx, MPI_Get_count(&status, MPI_BYTE, &count));
    void *data = malloc(count > 0 ? (size_t)count : 1);
    if (data == NULL) { /* take the message all the same, or it is found again for ever */
        DTR_INSIDE(MPI_Mrecv, NULL, 0, MPI_BYTE, &handle, MPI_STATUS_IGNORE);
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for a message of %d bytes", count);
    }
    int code = DTR_INSIDE(MPI_Mrecv, data, count, MPI_BYTE, &handle, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) {
        free(data);
        return dtr__error_mpi(&ctx, code, "MPI_Mrecv", __FILE__, __LINE__);
    }
    *message = data;
    *nbytes = (size_t)count;
    *from = status.MPI_SOURCE;
    return DTR_OK;
}
