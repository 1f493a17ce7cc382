/* What dtr-top reads of the ranks of other hosts: an answer of a rank of this host, damaged in any
 * way. */
#include <stdlib.h>
#include <string.h>

#include "diagnosis/remote_ranks.h"
#include "fuzz.h"

enum { RANKS = 3, WORLD = 5, JOB = 77 };

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    return 0;
}

size_t fuzz_seeds(void) {
    return 1;
}

uint8_t *fuzz_seed(size_t i, size_t *nbytes) {
    (void)i;
    *nbytes = sizeof(dtr__remote_ranks) + RANKS * sizeof(dtr__remote_rank);
    dtr__remote_ranks *all = calloc(1, *nbytes);
    if (all != NULL) {
        *all = (dtr__remote_ranks){ .magic = DTR__REMOTE_RANKS_MAGIC, .job_id = JOB, .n = RANKS };
        for (int r = 0; r < RANKS; r++) {
            all->rank[r].rank = r;
        }
    }
    return (uint8_t *)all;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    dtr__remote_ranks *all = malloc(nbytes > 0 ? nbytes : 1);
    if (all == NULL) {
        return 0;
    }
    memcpy(all, data, nbytes);
    if (dtr__remote_ranks_take(all, nbytes, JOB, WORLD)) {
        bool seen[WORLD] = { false };
        for (uint32_t i = 0; i < all->n; i++) {
            const dtr__remote_rank *r = &all->rank[i];
            seen[r->rank] = seen[r->node] = true;
            if (strlen(r->host) >= sizeof r->host || strlen(r->report.doing) >= DTR__REPORT_TEXT ||
                strlen(r->report.called.site) >= sizeof r->report.called.site ||
                r->report.n_groups > DTR__REPORT_GROUPS || !(seen[r->rank])) {
                abort();
            }
        }
    }
    free(all);
    return 0;
}
