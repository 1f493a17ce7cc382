/* Who is inside the library, where only one thread may be. */
#include <stdlib.h>
#include <unistd.h>

#include "core/signature.h"
#include "engine/turn.h"
#include "world/world.h"

#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ALWAYS = true };
#else
enum { ALWAYS = false };
#endif

struct dtr__turn {
    pthread_mutex_t lock; /* of all below */
    int depth;            /* calls inside each other; 0: nobody is inside */
    pthread_t thread;
    int tid;
    char entry[64], site[64];
};

dtr_status dtr__turn_open(dtr_world *world) {
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_create" };
    if (world->mpi.thread_level == MPI_THREAD_MULTIPLE || !(ALWAYS || dtr__at_detail(world))) {
        return DTR_OK;
    }
    world->turn = calloc(1, sizeof *world->turn);
    DTR_REQUIRE(world->turn != NULL, &ctx, DTR_ERR_NOMEM, "no memory for the look at threads");
    pthread_mutex_init(&world->turn->lock, NULL);
    return DTR_OK;
}

/* What a thread that is still inside will read stays. */
void dtr__turn_close(dtr_world *world) {
    if (world->turn != NULL && !dtr__turn_taken(world)) {
        pthread_mutex_destroy(&world->turn->lock);
        free(world->turn);
        world->turn = NULL;
    }
}

static const char *level_name(int level) {
    return level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
           : level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED"
                                          : "MPI_THREAD_SINGLE";
}

/* t->lock held. */
static dtr_status refuse(const dtr_world *world, const struct dtr__turn *t, const char *entry,
                         const char *site) {
    dtr__error_context ctx = { .world = world, .operation = entry };
    bool serial = world->mpi.thread_level == MPI_THREAD_SERIALIZED;
    return DTR_FAIL(&ctx, DTR_ERR_STATE,
                    "%s, called at %s by thread %d, while thread %d is inside %s, called at %s: at "
                    "%s %s; %sinitialise MPI with MPI_THREAD_MULTIPLE",
                    entry, site, (int)gettid(), t->tid, t->entry, t->site,
                    level_name(world->mpi.thread_level),
                    serial ? "one thread at a time may call the library"
                           : "only the thread that initialised MPI may call the library",
                    serial ? "put a lock around the program's calls, or " : "");
}

dtr_status dtr__turn_begin(dtr_world *world, const char *entry, const char *site) {
    struct dtr__turn *t = world->turn;
    dtr_status s = DTR_OK;
    pthread_mutex_lock(&t->lock);
    if (t->depth > 0 && !pthread_equal(t->thread, pthread_self())) {
        s = refuse(world, t, entry, site);
    } else if (t->depth++ == 0) {
        t->thread = pthread_self();
        t->tid = (int)gettid();
        snprintf(t->entry, sizeof t->entry, "%s", entry);
        snprintf(t->site, sizeof t->site, "%s", site);
    }
    pthread_mutex_unlock(&t->lock);
    return s;
}

void dtr__turn_end(dtr_world *world) {
    struct dtr__turn *t = world->turn;
    pthread_mutex_lock(&t->lock);
    t->depth--;
    pthread_mutex_unlock(&t->lock);
}

bool dtr__turn_taken(dtr_world *world) {
    struct dtr__turn *t = world->turn;
    pthread_mutex_lock(&t->lock);
    bool taken = t->depth > 0;
    pthread_mutex_unlock(&t->lock);
    return taken;
}
