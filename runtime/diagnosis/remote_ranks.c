#include "diagnosis/remote_ranks.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "control/peers.h"
#include "diagnosis/writer.h"

static bool path_of(const char *recording, char *path, size_t cap) {
    return dtr__recording_beside(recording, ".remote", path, cap);
}

/* ---- writing ---- */

/* False: nothing is known of it. */
static bool fill(const dtr_world *world, int world_rank, dtr__remote_rank *r) {
    const char *host = "";
    const bool known = dtr__control_report_of(world, world_rank, &r->report);
    r->rank = world_rank;
    r->node = world->node_of[world_rank];
    r->status = dtr__rank_failed(world, world_rank)
                    ? (int32_t)dtr__rank_failure_status(world, world_rank)
                    : 0;
    if (dtr__control_where(world, world_rank, &host, &r->pid)) {
        snprintf(r->host, sizeof r->host, "%s", host);
    }
    if (known) {
        r->silent = dtr__control_old(world, &r->report);
    } else {
        r->report = (dtr__rank_report){ .rank = world_rank };
    }
    return known || r->status != 0;
}

static dtr__remote_ranks *make(const dtr_world *world, uint32_t asked, size_t *nbytes) {
    const size_t others = (size_t)(world->size - world->local_size);
    dtr__remote_ranks *all =
        calloc(1, sizeof(dtr__remote_ranks) + others * sizeof(dtr__remote_rank));
    if (all == NULL) {
        return NULL;
    }
    all->magic = DTR__REMOTE_RANKS_MAGIC;
    all->job_id = world->job_id;
    all->answered = asked;
    for (int i = 0; i < world->size && all->n < others; i++) {
        if (world->node_of[i] != world->node) {
            all->n += fill(world, i, &all->rank[all->n]);
        }
    }
    all->now_ns = dtr__now_ns();
    *nbytes = sizeof(dtr__remote_ranks) + all->n * sizeof(dtr__remote_rank);
    return all;
}

/* Without memory, or where the file cannot be written, dtr-top says that it got no answer. */
void dtr__remote_ranks_round(dtr_world *world, uint32_t *answered) {
    const uint32_t asked = atomic_load(&dtr__recorder_header(world)->remote_asked);
    char path[560];
    size_t nbytes = 0;
    if (asked == *answered || !path_of(dtr__recorder_memory(world)->path, path, sizeof path)) {
        return;
    }
    *answered = asked;
    dtr__remote_ranks *all = make(world, asked, &nbytes);
    if (all != NULL) {
        (void)dtr__writer_put(world->diagnosis.writer, DTR__WRITTEN_REMOTE_RANKS, path, 0600,
                              (char *)all, nbytes);
    }
}

/* ---- reading ---- */

/* All or nothing: a file that is replaced while it is read keeps its bytes. */
static dtr__remote_ranks *read_whole(int fd, size_t *nbytes) {
    struct stat st;
    const off_t most = (off_t)sizeof(dtr__remote_ranks) +
                       (off_t)DTR__RECORDING_RANKS_MAX * (off_t)sizeof(dtr__remote_rank);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        st.st_size < (off_t)sizeof(dtr__remote_ranks) || st.st_size > most) {
        return NULL;
    }
    *nbytes = (size_t)st.st_size;
    dtr__remote_ranks *all = malloc(*nbytes);
    if (all != NULL && pread(fd, all, *nbytes, 0) != (ssize_t)*nbytes) {
        free(all);
        all = NULL;
    }
    return all;
}

static bool are_numbers(const dtr__rank_report *d) {
    return isfinite(d->since_s) && isfinite(d->rates.operations_per_s) &&
           isfinite(d->rates.gb_per_s) && isfinite(d->rates.steps_per_s) &&
           isfinite(d->rates.exposed);
}

static bool is_sound(const dtr__remote_ranks *all, size_t nbytes, uint64_t job_id, int world_size) {
    bool sound = nbytes >= sizeof *all && all->magic == DTR__REMOTE_RANKS_MAGIC &&
                 all->job_id == job_id && all->n <= (uint32_t)world_size &&
                 dtr__rec_is_time(all->now_ns) &&
                 nbytes == sizeof *all + all->n * sizeof all->rank[0];
    for (uint32_t i = 0; sound && i < all->n; i++) {
        const dtr__remote_rank *r = &all->rank[i];
        sound = r->rank >= 0 && r->rank < world_size && r->node >= 0 && r->node < world_size &&
                r->report.n_groups <= DTR__REPORT_GROUPS && dtr__rec_is_time(r->report.seen_ns) &&
                are_numbers(&r->report);
    }
    return sound;
}

bool dtr__remote_ranks_take(dtr__remote_ranks *all, size_t nbytes, uint64_t job_id,
                            int world_size) {
    const bool sound = is_sound(all, nbytes, job_id, world_size);
    for (uint32_t i = 0; sound && i < all->n; i++) {
        dtr__rank_report *d = &all->rank[i].report;
        all->rank[i].host[sizeof all->rank[i].host - 1] = '\0';
        d->doing[sizeof d->doing - 1] = '\0';
        d->called.site[sizeof d->called.site - 1] = '\0';
    }
    return sound;
}

dtr__remote_ranks *dtr__remote_ranks_load(const char *recording, uint64_t job_id, int world_size) {
    char path[560];
    size_t nbytes = 0;
    int fd = path_of(recording, path, sizeof path)
                 ? open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
                 : -1;
    dtr__remote_ranks *all = fd >= 0 ? read_whole(fd, &nbytes) : NULL;
    if (fd >= 0) {
        close(fd);
    }
    if (all != NULL && !dtr__remote_ranks_take(all, nbytes, job_id, world_size)) {
        free(all);
        all = NULL;
    }
    return all;
}
