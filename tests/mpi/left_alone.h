/* Whether operations end while the program calls nothing. */
#ifndef LEFT_ALONE_H
#define LEFT_ALONE_H

#include <string.h>

#include "control/peers.h"
#include "harness.h"

enum { LIMIT_S = 60 };

/* There is no thread that may call MPI, or a function of the program. */
static inline bool helps_only(void) {
    return strcmp(th_thread_level(), "multiple") != 0;
}

/* Whether the newest operations of this rank, as many as `n`, have ended, as its recorder has it: a
 * look that moves nothing. */
static inline bool have_ended(int n) {
    bool ended = true;
    dtr__recording *r = dtr__peer_look(th_world(), dtr_world_rank(th_world()));
    ck_assert_ptr_nonnull(r);
    for (size_t i = r->n_records; i > 0 && n > 0; i--, n--) {
        ended = ended && dtr__record_over(&r->records[i - 1]);
    }
    dtr__recording_free(r);
    return ended;
}

static inline bool end_by_themselves(int n) {
    const double end = th_now() + LIMIT_S;
    while (!have_ended(n) && th_now() < end) {
        th_sleep(0.01);
    }
    return have_ended(n);
}

#endif /* LEFT_ALONE_H */
