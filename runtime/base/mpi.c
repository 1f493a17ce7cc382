/* MPI as a resource of the process: who initialised it, how many worlds use it, and communicators.
 *
 * That MPI can be initialised and finalised only once per process is MPI's rule, so this is the one
 * place with process-wide state. */
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/mpi.h"
#include "base/world.h"

#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users;     /* worlds living or being made; lock */
static bool ours;     /* this library called MPI_Init_thread; lock */
static uint32_t uses; /* ever; lock */

bool dtr__mpi_alive(void) {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    return initialized && !finalized;
}

bool dtr__ranks_reachable(const dtr_world *world) {
    return world->mpi.inbox != NULL || dtr__mpi_alive();
}

/* ---- the end of communicators ---- */

#ifdef OPEN_MPI
static int free_kept(MPI_Comm self, int key, void *kept, void *extra) {
    (void)self, (void)key, (void)extra;
    int code = MPI_Comm_free(kept);
    free(kept);
    return code;
}

/* MPI deletes what is attached to MPI_COMM_SELF first when it is finalised: Open MPI loses memory
 * otherwise. MPICH does not, and may end the job in MPI_Comm_free. */
static void free_at_the_end(MPI_Comm comm) {
    int key = MPI_KEYVAL_INVALID;
    MPI_Comm *kept = malloc(sizeof *kept);
    if (kept != NULL) {
        *kept = comm;
        if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, free_kept, &key, NULL) != MPI_SUCCESS ||
            MPI_Comm_set_attr(MPI_COMM_SELF, key, kept) != MPI_SUCCESS) {
            free(kept); /* the communicator stays all the same */
        }
        if (key != MPI_KEYVAL_INVALID) {
            MPI_Comm_free_keyval(&key); /* gone with the attribute */
        }
    }
}
#else
static void free_at_the_end(MPI_Comm comm) {
    (void)comm;
}
#endif

void dtr__mpi_keep(dtr_world *world, MPI_Comm *comm) {
    free_at_the_end(*comm);
    atomic_store(&world->mpi.kept, true);
    *comm = MPI_COMM_NULL;
}

/* A message that nobody has received, such as one to a member that had no use for it any more,
 * turns up in a later communicator of MPICH; from 4.3 on it may end the job instead, whatever the
 * error handler. */
int dtr__mpi_free(MPI_Comm *comm) {
    MPI_Message message;
    MPI_Status status;
    int there = 0, nbytes = 0;
    if (*comm == MPI_COMM_NULL) {
        return MPI_SUCCESS;
    }
    while (MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, *comm, &there, &message, &status) ==
               MPI_SUCCESS &&
           there) {
        MPI_Get_count(&status, MPI_BYTE, &nbytes);
        void *unwanted = malloc((size_t)nbytes + 1);
        if (unwanted == NULL) {
            *comm = MPI_COMM_NULL; /* stays: the message has begun to be received */
            return MPI_SUCCESS;
        }
        MPI_Mrecv(unwanted, nbytes, MPI_BYTE, &message, MPI_STATUS_IGNORE);
        free(unwanted);
    }
    return MPI_Comm_free(comm);
}

/* ---- ranks that have died, where MPI tolerates faults ---- */

bool dtr__mpi_peer_died(int code) {
#ifdef MPIX_ERR_PROC_FAILED
    int class = MPI_SUCCESS;
    MPI_Error_class(code, &class);
    return class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_PROC_FAILED_PENDING;
#else
    (void)code;
    return false;
#endif
}

bool dtr__mpi_acknowledge(MPI_Comm comm, int code) {
#ifdef OMPI_HAVE_MPI_EXT_FTMPI
    int size, known;
    return dtr__mpi_peer_died(code) && MPI_Comm_size(comm, &size) == MPI_SUCCESS &&
           MPIX_Comm_ack_failed(comm, size, &known) == MPI_SUCCESS;
#else
    (void)comm, (void)code;
    return false;
#endif
}

/* ---- users ---- */

static dtr_status acquire_locked(bool may_initialise, int *level, bool *own, uint32_t *serial) {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    DTR_REQUIRE(!finalized, NULL, DTR_ERR_STATE,
                "MPI has been finalised%s and cannot be started again in this process%s",
                ours ? " (by the library, with its last world)" : "",
                ours ? ": initialise MPI in the program, or set keep_mpi in the world's options"
                     : ": create the world before MPI_Finalize");
    if (!initialized) {
        DTR_REQUIRE(may_initialise, NULL, DTR_ERR_STATE,
                    "MPI is not initialised: call MPI_Init_thread before "
                    "dtr_world_create_from_comm");
        DTR_MPI(NULL, MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, level));
        ours = true;
    }
    DTR_MPI(NULL, MPI_Query_thread(level));
    *own = ours;
    *serial = ++uses;
    users++;
    return DTR_OK;
}

dtr_status dtr__mpi_acquire(bool may_initialise, int *level, bool *own, uint32_t *serial) {
    pthread_mutex_lock(&lock);
    dtr_status s = acquire_locked(may_initialise, level, own, serial);
    pthread_mutex_unlock(&lock);
    return s;
}

uint32_t dtr__mpi_pass(void) {
    pthread_mutex_lock(&lock);
    const uint32_t serial = ++uses;
    pthread_mutex_unlock(&lock);
    return serial;
}

dtr_status dtr__mpi_release(bool finish) {
    dtr_status s = DTR_OK;
    pthread_mutex_lock(&lock);
    users--;
    if (finish && ours && users == 0 && dtr__mpi_alive()) {
        int code = MPI_Finalize();
        if (code != MPI_SUCCESS) {
            s = dtr__error_mpi(NULL, code, "MPI_Finalize", __FILE__, __LINE__);
        }
    }
    pthread_mutex_unlock(&lock);
    return s;
}

/* ---- waiting for all before anything can block ---- */

static dtr_status await(MPI_Request *request, double limit_s, int rank, int size) {
    dtr__backoff backoff = { 0 };
    double end = dtr__now() + limit_s;
    int done = 0;
    for (;;) {
        DTR_MPI(NULL, MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (done) {
            return DTR_OK;
        }
        DTR_REQUIRE(
            dtr__now() < end, NULL, DTR_ERR_TIMEOUT,
            "world creation: rank %d has waited %g s, but not all %d ranks of the "
            "communicator have come. A rank has ended before, does not create the world, or "
            "came when others had given up: the ranks without this message are the ones to "
            "look at. No world can be made on this communicator any more",
            rank, limit_s, size);
        dtr__backoff_pause(NULL, &backoff);
    }
}

/* Twice: who passes the first knows that all have come, and who passes the second that nobody had
 * left before. */
dtr_status dtr__mpi_await_all(MPI_Comm comm, double limit_s) {
    int rank, size;
    DTR_MPI(NULL, MPI_Comm_rank(comm, &rank));
    DTR_MPI(NULL, MPI_Comm_size(comm, &size));
    for (int i = 0; i < 2 && size > 1; i++) {
        MPI_Request request = MPI_REQUEST_NULL;
        DTR_MPI(NULL, MPI_Ibarrier(comm, &request));
        DTR_TRY(await(&request, limit_s, rank, size));
    }
    return DTR_OK;
}
