/* Mapping the recordings of the node's other ranks, and asking the kernel about their processes. A
 * process is known by its number and start time together, so that a number used again is not taken
 * for a peer. */
#include "control/peers.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/exchange.h"
#include "base/world.h"
#include "recorder/recorder.h"

typedef struct peer {
    const dtr__rec_header *map; /* NULL: not to be seen */
    size_t nbytes;
    int fd;       /* of the process, -1: none */
    bool watched; /* the process can be watched by its number */
} peer;

enum { DEAD = 1, STUCK };

struct dtr__peers {
    int n, n_ranks; /* of the node, of the world */
    peer *peer;     /* [n] */
    _Atomic int n_dead;
    _Atomic uint8_t *dead; /* [world size] 0: alive */
    pthread_mutex_t lock;
    char **failure; /* [world size], NULL or what is known of the failure; set once, lock */
};

/* What a rank sends the others about its recording. */
typedef struct offer {
    uint64_t nbytes, nonce, pid_start, pid_space;
    uint32_t pid;
    int32_t fd;
    char path[512];
} offer;

static uint64_t own_pid_space(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static void fill_offer(const dtr_world *world, offer *o) {
    const dtr__rec_memory *m = dtr__recorder_memory(world);
    *o = (offer){ .nbytes = m->nbytes,
                  .nonce = m->header->nonce,
                  .pid_start = m->header->pid_start,
                  .pid_space = own_pid_space(),
                  .pid = m->header->pid,
                  .fd = m->fd };
    snprintf(o->path, sizeof o->path, "%s", m->path);
}

/* By its name, else, where mounts differ or there is none, through /proc. */
static const dtr__rec_header *map_path(const char *path, const offer *o) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *p = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &st) == 0 && (uint64_t)st.st_size == o->nbytes) {
        p = mmap(NULL, o->nbytes, PROT_READ, MAP_SHARED, fd, 0);
    }
    if (fd >= 0) {
        close(fd);
    }
    if (p == MAP_FAILED) {
        return NULL;
    }
    const dtr__rec_header *h = p;
    if (h->magic != DTR__RECORDING_MAGIC || h->nonce != o->nonce) {
        munmap(p, o->nbytes);
        return NULL;
    }
    return h;
}

static int open_process(uint32_t pid) {
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
#else
    (void)pid;
    return -1;
#endif
}

static void find_peer(peer *p, const offer *o) {
    char path[64], state;
    uint64_t start = 0;
    p->nbytes = o->nbytes;
    p->map = o->path[0] != '\0' ? map_path(o->path, o) : NULL;
    if (p->map == NULL && o->fd >= 0) {
        snprintf(path, sizeof path, "/proc/%u/fd/%d", o->pid, o->fd);
        p->map = map_path(path, o);
    }
    /* Numbers of another pid namespace are other processes here. */
    p->watched = o->pid_space != 0 && o->pid_space == own_pid_space() && o->pid_start != 0;
    if (!p->watched) {
        return;
    }
    p->fd = open_process(o->pid);
    if (p->fd >= 0 && (!dtr__process_look(o->pid, &start, &state) || start != o->pid_start)) {
        close(p->fd); /* ended meanwhile: found by its number */
        p->fd = -1;
    }
}

static void delete_peers(struct dtr__peers *ps) {
    for (int i = 0; ps->failure != NULL && i < ps->n_ranks; i++) {
        free(ps->failure[i]);
    }
    pthread_mutex_destroy(&ps->lock);
    free((void *)ps->failure);
    free(ps->peer);
    free((void *)ps->dead);
    free(ps);
}

static struct dtr__peers *new_peers(const dtr_world *world) {
    struct dtr__peers *ps = calloc(1, sizeof *ps);
    if (ps != NULL) {
        ps->n = world->local_size;
        ps->peer = calloc((size_t)ps->n, sizeof *ps->peer);
        ps->dead = calloc((size_t)world->size, sizeof *ps->dead);
        ps->failure = calloc((size_t)world->size, sizeof *ps->failure);
        ps->n_ranks = world->size;
        pthread_mutex_init(&ps->lock, NULL);
        for (int i = 0; ps->peer != NULL && i < ps->n; i++) {
            ps->peer[i].fd = -1;
        }
    }
    if (ps != NULL && (ps->peer == NULL || ps->dead == NULL || ps->failure == NULL)) {
        delete_peers(ps);
        return NULL;
    }
    return ps;
}

dtr_status dtr__peers_open(dtr_world *world) {
    dtr__error_context ctx = { .world = world };
    offer mine, *offers = calloc((size_t)world->local_size, sizeof *offers);
    world->control.peers = new_peers(world);
    fill_offer(world, &mine);
    int able = offers != NULL && world->control.peers != NULL, all = 0;
    dtr_status s = dtr__exchange_min_of(dtr__members_of_node(world), able, &all);
    if (s == DTR_OK && all && able) {
        s = dtr__exchange_allgather(dtr__members_of_node(world), &mine, offers, sizeof mine);
        for (int i = 0; s == DTR_OK && i < world->local_size; i++) {
            if (i != world->local_rank) {
                find_peer(&world->control.peers->peer[i], &offers[i]);
            }
        }
    }
    free(offers);
    DTR_REQUIRE(able, &ctx, DTR_ERR_NOMEM, "no memory for the facts of %d ranks of this node",
                world->local_size);
    return s;
}

void dtr__peers_close(dtr_world *world) {
    struct dtr__peers *ps = world->control.peers;
    if (ps == NULL) {
        return;
    }
    for (int i = 0; i < ps->n; i++) {
        if (ps->peer[i].map != NULL) {
            munmap((void *)ps->peer[i].map, ps->peer[i].nbytes);
        }
        if (ps->peer[i].fd >= 0) {
            close(ps->peer[i].fd);
        }
    }
    delete_peers(ps);
    world->control.peers = NULL;
}

/* ---- processes ---- */

int dtr__peer_fd(const dtr_world *world, int local_rank) {
    return world->control.peers->peer[local_rank].fd;
}

const dtr__rec_header *dtr__peer_header(const dtr_world *world, int local_rank) {
    return world->control.peers->peer[local_rank].map;
}

static bool has_ended(const peer *p) {
    char state = '?';
    uint64_t start = 0;
    struct pollfd look = { .fd = p->fd, .events = POLLIN };
    if (p->fd >= 0) {
        return poll(&look, 1, 0) == 1 && look.revents != 0;
    }
    return !dtr__process_look(p->map->pid, &start, &state) || start != p->map->pid_start ||
           state == 'Z' || state == 'X';
}

/* True also where it cannot be seen. */
static bool has_watchdog(uint32_t pid) {
    char path[64], name[32];
    snprintf(path, sizeof path, "/proc/%u/task", pid);
    DIR *dir = opendir(path);
    bool found = dir == NULL;
    for (const struct dirent *e; !found && (e = readdir(dir)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%u/task/%.20s/comm", pid, e->d_name);
        int fd = e->d_name[0] != '.' ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        ssize_t n = fd >= 0 ? read(fd, name, sizeof name - 1) : 0;
        found = n > 0 && strncmp(name, "dtr-watchdog\n", (size_t)n) == 0;
        if (fd >= 0) {
            close(fd);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return found;
}

/* exec leaves the process and its number, and takes its threads: the watchdog is silent and not
 * there. One that is stopped or has no time still is. */
static bool has_execed(const peer *p) {
    const int64_t silent_ns = 2000000000, beat = atomic_load(&p->map->beat_ns);
    char state = '?';
    uint64_t start = 0;
    return beat != 0 && dtr__now_ns() - beat > silent_ns &&
           dtr__process_look(p->map->pid, &start, &state) && start == p->map->pid_start &&
           strchr("TtZX", state) == NULL && !has_watchdog(p->map->pid);
}

bool dtr__peer_execed(const dtr_world *world, int world_rank) {
    const peer *p = &world->control.peers->peer[world->local_rank_of[world_rank]];
    return world->node_of[world_rank] == world->node && world_rank != world->rank &&
           p->map != NULL && p->watched && has_execed(p);
}

bool dtr__peer_gone(const dtr_world *world, int local_rank) {
    const peer *p = &world->control.peers->peer[local_rank];
    if (local_rank == world->local_rank || p->map == NULL || !p->watched) {
        return false;
    }
    /* The process first: it writes its phase before it ends. */
    return (has_ended(p) || has_execed(p)) && atomic_load(&p->map->phase) < DTR__PHASE_DESTROYING;
}

bool dtr__peer_has_left(const dtr_world *world, int world_rank) {
    for (int i = 0; i < world->local_size; i++) {
        const peer *p = &world->control.peers->peer[i];
        if (world->local_world[i] == world_rank && p->map != NULL) {
            return atomic_load(&p->map->phase) >= DTR__PHASE_DESTROYING;
        }
    }
    return false;
}

bool dtr__peer_runs(const dtr_world *world, int local_rank) {
    const peer *p = &world->control.peers->peer[local_rank];
    char state = '?';
    uint64_t start = 0;
    return p->map != NULL && p->watched && dtr__process_look(p->map->pid, &start, &state) &&
           start == p->map->pid_start && strchr("TtZX", state) == NULL;
}

bool dtr__peer_beats(const dtr_world *world, int local_rank, int64_t since_ns) {
    const peer *p = &world->control.peers->peer[local_rank];
    if (p->map == NULL) {
        return true;
    }
    int64_t beat = atomic_load(&p->map->beat_ns);
    return !(p->watched && has_ended(p)) && (beat == 0 || beat > since_ns);
}

bool dtr__rank_failed(const dtr_world *world, int world_rank) {
    return world->control.peers != NULL &&
           atomic_load(&world->control.peers->dead[world_rank]) != 0;
}

bool dtr__rank_set_failed(dtr_world *world, int world_rank, dtr_status status, const char *text) {
    struct dtr__peers *ps = world->control.peers;
    if (ps == NULL || world_rank < 0 || world_rank >= world->size) {
        return false;
    }
    pthread_mutex_lock(&ps->lock);
    bool first = atomic_load(&ps->dead[world_rank]) == 0;
    if (first) {
        ps->failure[world_rank] = strdup(text);
        atomic_store(&ps->dead[world_rank], status == DTR_ERR_TIMEOUT ? STUCK : DEAD);
        atomic_fetch_add(&ps->n_dead, 1);
    }
    pthread_mutex_unlock(&ps->lock);
    return first;
}

dtr_status dtr__rank_failure_status(const dtr_world *world, int world_rank) {
    return atomic_load(&world->control.peers->dead[world_rank]) == STUCK ? DTR_ERR_TIMEOUT
                                                                         : DTR_ERR_REMOTE;
}

const char *dtr__rank_failure(const dtr_world *world, int world_rank) {
    const char *text = world->control.peers->failure[world_rank];
    return text != NULL ? text : "a rank died";
}

int dtr__ranks_failed(const dtr_world *world) {
    return world->control.peers != NULL ? atomic_load(&world->control.peers->n_dead) : 0;
}

/* ---- recordings ---- */

/* NULL where the rank cannot be seen from here. */
static const dtr__rec_header *header_of(const dtr_world *world, int world_rank, size_t *nbytes) {
    if (world->control.peers == NULL || world_rank < 0 || world_rank >= world->size ||
        world->node_of[world_rank] != world->node) {
        return NULL;
    }
    if (world_rank == world->rank) {
        *nbytes = dtr__recorder_memory(world)->nbytes;
        return dtr__recorder_header(world);
    }
    const peer *p = &world->control.peers->peer[world->local_rank_of[world_rank]];
    *nbytes = p->nbytes;
    return p->map;
}

enum { GLANCE = 256 };

static dtr__recording *look(const dtr_world *world, int world_rank, bool all) {
    char why[80];
    size_t nbytes = 0;
    const dtr__rec_header *h = header_of(world, world_rank, &nbytes);
    if (h == NULL) {
        return NULL;
    }
    dtr__recording *r = all ? dtr__recording_parse(h, nbytes, why, sizeof why)
                            : dtr__recording_glance(h, nbytes, GLANCE);
    if (r != NULL) {
        uint64_t start = 0;
        r->state = '?';
        r->alive = dtr__process_look(h->pid, &start, &r->state) && start == h->pid_start &&
                   r->state != 'Z';
    }
    return r;
}

dtr__recording *dtr__peer_look(const dtr_world *world, int world_rank) {
    return look(world, world_rank, true);
}

dtr__recording *dtr__peer_glance(const dtr_world *world, int world_rank) {
    return look(world, world_rank, false);
}

const char *dtr__peer_name(const dtr_world *world, int world_rank, char *text, size_t cap) {
    size_t nbytes;
    uint32_t pid = 0;
    const char *host = NULL;
    const dtr__rec_header *h = header_of(world, world_rank, &nbytes);
    if (h != NULL) {
        snprintf(text, cap, "rank %d (host %s, pid %u)", world_rank, h->host, h->pid);
    } else if (dtr__control_where(world, world_rank, &host, &pid)) {
        snprintf(text, cap, "rank %d (host %s, pid %u)", world_rank, host, pid);
    } else {
        snprintf(text, cap, "rank %d", world_rank);
    }
    return text;
}

const char *dtr__peer_doing(const dtr_world *world, int world_rank, char *text, size_t cap) {
    dtr__recording *r = dtr__peer_look(world, world_rank);
    dtr__rank_report d;
    text[0] = '\0';
    if (r != NULL) {
        dtr__recording_doing(r, dtr__now_ns(), text, cap);
    } else if (dtr__control_report_of(world, world_rank, &d)) {
        if (dtr__control_aged(world, &d)) {
            snprintf(text, cap, "no report of it has come since %.1f s; the last was: %s",
                     (double)(dtr__now_ns() - d.seen_ns) * 1e-9, d.doing);
        } else {
            snprintf(text, cap, "%s", d.doing);
        }
    }
    dtr__recording_free(r);
    return text;
}

bool dtr__peer_entered(const dtr_world *world, int world_rank, uint64_t group_uid, int64_t since_ns,
                       uint64_t *seq) {
    dtr__recording *r = dtr__peer_look(world, world_rank);
    const dtr__rec_group *g = r != NULL ? dtr__recording_group_uid(r, group_uid) : NULL;
    dtr__rank_report d;
    *seq = 0;
    bool known = g != NULL && dtr__recording_entered(r, g, seq);
    if (r == NULL && dtr__control_report_of(world, world_rank, &d) &&
        (d.seen_ns > since_ns || dtr__control_old(world, &d))) {
        for (uint32_t i = 0; i < d.n_groups && !known; i++) {
            known = d.group[i].uid == group_uid;
            *seq = known ? d.group[i].seq : 0;
        }
    }
    dtr__recording_free(r);
    return known;
}

/* `over`: where it is inside none, the one that it gave up last. */
static bool peer_in(const dtr_world *world, int world_rank, bool over, uint64_t *group_uid,
                    uint64_t *seq) {
    dtr__recording *r = dtr__peer_look(world, world_rank);
    const dtr__record *in = r == NULL ? NULL
                            : over    ? dtr__recording_waited(r)
                                      : dtr__recording_open(r);
    const dtr__rec_group *g = in != NULL ? dtr__recording_group(r, in->group) : NULL;
    dtr__rank_report d;
    bool known = g != NULL && in->seq != 0;
    if (known) {
        *group_uid = g->uid;
        *seq = in->seq;
    } else if (r == NULL && dtr__control_report_of(world, world_rank, &d)) {
        known = d.in_seq != 0 && (over || d.in_over == 0);
        *group_uid = d.in_uid;
        *seq = d.in_seq;
    }
    dtr__recording_free(r);
    return known;
}

bool dtr__peer_inside(const dtr_world *world, int world_rank, uint64_t *group_uid, uint64_t *seq) {
    return peer_in(world, world_rank, false, group_uid, seq);
}

bool dtr__peer_waited(const dtr_world *world, int world_rank, uint64_t *group_uid, uint64_t *seq) {
    return peer_in(world, world_rank, true, group_uid, seq);
}

bool dtr__peer_called(const dtr_world *world, int world_rank, uint64_t group_uid, uint64_t seq,
                      dtr__called *called, char *label) {
    dtr__recording *r = dtr__peer_glance(world, world_rank);
    const dtr__rec_group *g = r != NULL ? dtr__recording_group_uid(r, group_uid) : NULL;
    dtr__rank_report d;
    bool found = false;
    if (label != NULL) {
        label[0] = '\0';
    }
    for (size_t i = g != NULL ? r->n_records : 0; i > 0 && !found; i--) {
        const dtr__record *rec = &r->records[i - 1];
        found = rec->group == atomic_load(&g->id) && rec->seq == seq &&
                dtr__record_called(r, rec, called);
        if (found && label != NULL) {
            memcpy(label, rec->label, sizeof rec->label);
        }
    }
    if (r == NULL && seq != 0 && dtr__control_report_of(world, world_rank, &d)) {
        *called = d.called;
        found = called->uid == group_uid && called->seq == seq;
        for (int i = 0; i < DTR__REPORT_BEFORE && !found; i++) {
            *called = d.before[i];
            found = called->uid == group_uid && called->seq == seq;
        }
    }
    dtr__recording_free(r);
    return found;
}
