/* DTR_ON_ERROR=abort: the one place where the library ends a process, because it was asked to. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/world.h"
#include "control/peers.h"
#include "diagnosis/dump.h"
#include "diagnosis/metrics.h"
#include "recorder/recorder.h"

/* After so long a rank that has not failed itself is taken for no member of the broken group. */
#define LEARN_NS INT64_C(1000000000)

/* The rank needs no more time: it has its dump and knows of the failure itself, or it has ended. */
static bool has_done(const dtr_world *world, int local_rank, bool dumps, bool learnt) {
    const dtr__rec_header *h = local_rank == world->local_rank
                                   ? dtr__recorder_header(world)
                                   : dtr__peer_header(world, local_rank);
    if (h == NULL || (local_rank != world->local_rank && dtr__peer_gone(world, local_rank)) ||
        atomic_load(&h->phase) != DTR__PHASE_RUNNING) {
        return true;
    }
    return (!dumps || atomic_load(&h->dumps) > 0) &&
           (learnt || atomic_load(&h->failure.version) >= 2);
}

static bool all_have_done(const dtr_world *world, int64_t waited_ns) {
    bool dumps = dtr__opt_number(&world->options, DTR__OPT_DUMP) != 0 &&
                 dtr__recorder_memory(world)->path[0] != '\0';
    double most_s = dtr__opt_seconds(&world->options, DTR__OPT_DUMP_WAIT);
    bool done = (double)waited_ns * 1e-9 >= most_s;
    for (int i = 0; i < world->local_size && !done; i++) {
        if (!has_done(world, i, dumps, waited_ns >= LEARN_NS)) {
            return false;
        }
    }
    return true;
}

void dtr__abort_round(const dtr_world *world, int64_t *since_ns, bool last) {
    const dtr__rec_header *h = dtr__recorder_header(world);
    dtr__rec_error e;
    if (dtr__opt_number(&world->options, DTR__OPT_ON_ERROR) == 0 ||
        atomic_load(&h->failure.version) == 0 || !dtr__rec_error_copy(&h->failure, &e) ||
        e.status == DTR_ERR_ABORTED) {
        return;
    }
    int64_t now = dtr__now_ns();
    *since_ns = *since_ns != 0 ? *since_ns : now;
    if (last || all_have_done(world, now - *since_ns)) {
        dtr__log_line(world, DTR_LOG_ERROR, "DTR_ON_ERROR=abort ends this process: %s", e.text);
        abort();
    }
}
