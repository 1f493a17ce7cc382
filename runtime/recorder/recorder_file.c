/* Where a flight recorder's records lie: a mapped file, so that they survive the process however it
 * ends, or memory where no file can be made. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <dtr/version.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/world.h"
#include "evidence.h"
#include "recorder/counters.h"
#include "recorder/recorder.h"
#include "recorder/recording.h"

enum { FOLDER_MODE = 0700, FILE_MODE = 0600, LINE = 64 };

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* ---- folder and file ---- */

/* The folder for this world's files; `own`: made for this job, to be removed at a clean end. */
static bool choose_folder(const dtr_world *world, char *folder, size_t cap, bool *own) {
    const char *named = dtr__opt_text(&world->options, DTR__OPT_RECORDER_DIR);
    *own = named == NULL || named[0] == '\0';
    if (*own) {
        snprintf(folder, cap, "%s/dtr-%u-%016llx", dtr__evidence_base(), (unsigned)getuid(),
                 (unsigned long long)world->job_id);
    } else if (strcmp(named, "none") == 0) {
        return false;
    } else {
        snprintf(folder, cap, "%s", named);
    }
    return true;
}

/* Only a folder of this user is taken: another's could be a trap in a shared /tmp. */
static bool make_folder(const char *folder, bool own, char *why, size_t cap) {
    struct stat st;
    if (mkdir(folder, FOLDER_MODE) != 0 && errno != EEXIST) {
        snprintf(why, cap, "mkdir: %s", strerror(errno));
        return false;
    }
    if (stat(folder, &st) != 0 || !S_ISDIR(st.st_mode)) {
        snprintf(why, cap, "it is no folder");
        return false;
    }
    if (own && st.st_uid != getuid()) {
        snprintf(why, cap, "it belongs to another user");
        return false;
    }
    return true;
}

/* The blocks are taken now: a full disk must be an error here and no signal at the first record.
 * The lock says that the file is in use, also to who cannot see this process. */
static int make_file(dtr__rec_memory *m, char *why, size_t cap) {
    int fd = open(m->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, FILE_MODE);
    if (fd < 0) {
        snprintf(why, cap, "open: %s", strerror(errno));
        return -1;
    }
    (void)flock(fd, LOCK_SH | LOCK_NB);
    int code = posix_fallocate(fd, 0, (off_t)m->nbytes);
    if (code != 0) {
        snprintf(why, cap, "%zu KiB: %s", m->nbytes / 1024, strerror(code));
        close(fd);
        unlink(m->path);
        return -1;
    }
    return fd;
}

/* Every page is written to once: a shared mapping populated by mmap still faults at the first
 * write, in the middle of an operation. Rings of more than `most` bytes are rare and go round
 * slowly. */
static void touch(unsigned char *p, size_t nbytes) {
    const size_t most = (size_t)16 << 20;
    for (size_t at = 0; at < nbytes && at < most; at += 4096) {
        *(volatile unsigned char *)(p + at) = 0;
    }
}

static void *map(int fd, size_t nbytes) {
    int how = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, how | MAP_POPULATE, fd, 0);
    if (p == MAP_FAILED) {
        return NULL;
    }
    touch(p, nbytes);
    return p;
}

static void age(const dtr_world *world) {
    uint64_t keep = dtr__opt_number(&world->options, DTR__OPT_RECORDER_KEEP);
    int gone =
        keep > 0 && world->local_rank == 0 ? dtr__evidence_age(dtr__evidence_base(), keep) : 0;
    if (gone > 0) {
        DTR_INFO(world, "%d folder%s of ended jobs in %s removed (DTR_RECORDER_KEEP=%llu)", gone,
                 gone == 1 ? "" : "s", dtr__evidence_base(), (unsigned long long)keep);
    }
}

/* True: m has a mapped file. */
static bool open_file(const dtr_world *world, dtr__rec_memory *m) {
    char folder[448], why[160] = "";
    bool own = false;
    if (!choose_folder(world, folder, sizeof folder, &own)) {
        return false;
    }
    if (make_folder(folder, own, why, sizeof why)) {
        snprintf(m->path, sizeof m->path, "%s/dtr-%016llx-rank%d.rec", folder,
                 (unsigned long long)world->job_id, world->rank);
        m->fd = make_file(m, why, sizeof why);
        m->header = m->fd >= 0 ? map(m->fd, m->nbytes) : NULL;
        if (m->fd >= 0 && m->header == NULL) {
            snprintf(why, sizeof why, "mmap: %s", strerror(errno));
            close(m->fd);
            unlink(m->path);
            m->fd = -1;
        }
        if (own) {
            snprintf(m->folder, sizeof m->folder, "%s", folder);
            age(world);
        }
    }
    if (m->header == NULL) {
        DTR_WARN(world,
                 "the flight recorder keeps its records in memory, where they are lost with the "
                 "process: no file in %s (DTR_RECORDER_DIR): %s",
                 folder, why);
        if (own) {
            rmdir(folder);
        }
        m->path[0] = m->folder[0] = '\0';
    }
    return m->header != NULL;
}

/* ---- what never changes ---- */

static void read_command(char *text, size_t cap) {
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, cap - 1) : 0;
    if (fd >= 0) {
        close(fd);
    }
    n = n > 0 ? n : 0;
    for (ssize_t i = 0; i + 1 < n; i++) {
        text[i] = text[i] == '\0' ? ' ' : text[i];
    }
    text[n] = '\0';
}

/* As many as there are operations, up to some seconds' worth. */
static uint64_t span_count(uint64_t entries) {
    return entries < DTR__RECORDING_SPANS ? entries : DTR__RECORDING_SPANS;
}

static uint64_t stack_count(const dtr_world *world, uint64_t entries) {
    return dtr__opt_number(&world->options, DTR__OPT_RECORDER_STACK) != 0 ? entries : 0;
}

static void fill_header(const dtr_world *world, uint64_t entries, dtr__rec_header *h,
                        size_t nbytes) {
    char state;
    struct timespec real;
    h->version = DTR__RECORDING_VERSION;
    h->header_bytes = sizeof *h;
    h->record_bytes = sizeof(dtr__record);
    h->group_bytes = sizeof(dtr__rec_group);
    h->entries = entries;
    h->groups = DTR__RECORDING_GROUPS;
    h->members = DTR__RECORDING_MEMBERS;
    h->groups_at = round_up(sizeof *h, LINE);
    h->members_at = h->groups_at + h->groups * sizeof(dtr__rec_group);
    h->ring_at = nbytes - entries * sizeof(dtr__record);
    h->spans = span_count(entries);
    h->spans_at = h->ring_at - h->spans * sizeof(dtr__rec_span);
    h->stacks = stack_count(world, entries);
    h->stacks_at =
        h->stacks != 0 ? round_up(h->members_at + h->members * sizeof(int32_t), LINE) : 0;
    h->file_bytes = nbytes;
    h->job_id = world->job_id;
    h->world_rank = world->rank;
    h->world_size = world->size > 0 ? world->size : 1;
    h->local_rank = world->local_rank;
    h->local_size = world->local_size;
    h->node = world->node;
    h->node_count = world->node_count;
    h->pid = (uint32_t)getpid();
    h->world_serial = world->serial;
    (void)dtr__process_look(h->pid, &h->pid_start, &state);
    h->mono_ns = dtr__now_ns();
    clock_gettime(CLOCK_REALTIME, &real);
    h->real_ns = (int64_t)real.tv_sec * 1000000000 + real.tv_nsec;
    snprintf(h->host, sizeof h->host, "%s", world->host);
    snprintf(h->library, sizeof h->library, "%d.%d.%d", DTR_VERSION_MAJOR, DTR_VERSION_MINOR,
             DTR_VERSION_PATCH);
    read_command(h->command, sizeof h->command);
    dtr__options_list(&world->options, h->settings, sizeof h->settings);
    if (getrandom(&h->nonce, sizeof h->nonce, 0) != (ssize_t)sizeof h->nonce) {
        h->nonce = (uint64_t)h->real_ns ^ (uint64_t)h->pid << 40;
    }
    atomic_store(&h->phase, DTR__PHASE_OPENING);
    h->magic = DTR__RECORDING_MAGIC;
}

void dtr__rec_add_setting(const dtr_world *world, const char *line) {
    dtr__rec_header *h = dtr__recorder_header(world);
    const size_t at = h != NULL ? strlen(h->settings) : 0;
    if (h != NULL && at + strlen(line) + 2 < sizeof h->settings) {
        snprintf(h->settings + at, sizeof h->settings - at, "%s\n", line);
    }
}

/* ---- a process that ends with open worlds ---- */

enum { OPEN_MAX_KEPT = 64 };
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static dtr__rec_header *open_headers[OPEN_MAX_KEPT]; /* open_lock */

static void keep_open(dtr__rec_header *from, dtr__rec_header *to) {
    pthread_mutex_lock(&open_lock);
    for (int i = 0; i < OPEN_MAX_KEPT; i++) {
        if (open_headers[i] == from) {
            open_headers[i] = to;
            break;
        }
    }
    pthread_mutex_unlock(&open_lock);
}

/* Lets peers tell a rank that left by itself from one that was killed. A forked child shares the
 * mapping, but it is not the rank. */
__attribute__((destructor)) static void note_exit(void) {
    for (int i = 0; i < OPEN_MAX_KEPT; i++) {
        dtr__rec_header *h = open_headers[i];
        if (h != NULL && h->pid == (uint32_t)getpid() &&
            atomic_load(&h->phase) < DTR__PHASE_DESTROYING) {
            atomic_store(&h->phase, DTR__PHASE_EXITED);
        }
    }
}

dtr_status dtr__rec_memory_open(dtr_world *world, uint64_t entries, dtr__rec_memory *m) {
    *m = (dtr__rec_memory){ .fd = -1 };
    size_t before = round_up(sizeof(dtr__rec_header), LINE) +
                    DTR__RECORDING_GROUPS * sizeof(dtr__rec_group) +
                    DTR__RECORDING_MEMBERS * sizeof(int32_t);
    before = round_up(before, LINE) + dtr__rec_stack_bytes(stack_count(world, entries));
    m->nbytes = round_up(before + span_count(entries) * sizeof(dtr__rec_span), 4096) +
                entries * sizeof(dtr__record);
    if (!open_file(world, m)) {
        m->fd = memfd_create("dtr-recorder", MFD_CLOEXEC);
        if (m->fd >= 0 && ftruncate(m->fd, (off_t)m->nbytes) != 0) {
            close(m->fd);
            m->fd = -1;
        }
        m->header = map(m->fd, m->nbytes);
    }
    DTR_REQUIRE(m->header != NULL, NULL, DTR_ERR_NOMEM,
                "no memory for the flight recorder of %llu records (%zu KiB): lower "
                "DTR_RECORDER_ENTRIES",
                (unsigned long long)entries, m->nbytes / 1024);
    fill_header(world, entries, m->header, m->nbytes);
    keep_open(NULL, m->header);
    return DTR_OK;
}

void dtr__rec_memory_close(dtr__rec_memory *m, bool keep) {
    keep_open(m->header, NULL);
    atomic_store(&m->header->phase, DTR__PHASE_CLOSED);
    munmap(m->header, m->nbytes);
    if (m->fd >= 0) {
        close(m->fd);
    }
    char remote[sizeof m->path + 16];
    if (dtr__recording_beside(m->path, ".remote", remote, sizeof remote)) {
        unlink(remote);
    }
    if (m->folder[0] != '\0' && !keep) {
        unlink(m->path);
        rmdir(m->folder); /* the last rank of the node succeeds */
    }
}

/* ---- groups, names and errors: rare, so a lock of their own is enough ---- */

/* Orders writers of one process; readers see whole entries by `id` and `version`. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static dtr__rec_group *groups_of(dtr__rec_header *h) {
    return (dtr__rec_group *)((char *)h + h->groups_at);
}

/* A free entry, else the place of a destroyed group; NULL: more live groups than entries. */
static dtr__rec_group *free_entry(dtr__rec_header *h) {
    dtr__rec_group *all = groups_of(h), *gone = NULL;
    for (uint64_t i = 0; i < h->groups; i++) {
        if (atomic_load(&all[i].id) == 0) {
            return &all[i];
        }
        if (all[i].gone && (gone == NULL || atomic_load(&all[i].id) < atomic_load(&gone->id))) {
            gone = &all[i];
        }
    }
    return gone;
}

/* Members that are not evenly spaced go behind those of earlier groups, as long as there is room.
 */
static void fill_members(dtr__rec_header *h, dtr__rec_group *g, const int *ranks) {
    int stride = g->size > 1 ? ranks[1] - ranks[0] : 0, regular = 1;
    for (int i = 1; i < g->size; i++) {
        regular = regular && ranks[i] - ranks[i - 1] == stride;
    }
    g->start = ranks[0];
    g->stride = regular ? stride : 0;
    g->members = -1;
    if (regular) {
        return;
    }
    int64_t used = 0;
    const dtr__rec_group *all = groups_of(h);
    for (uint64_t i = 0; i < h->groups; i++) {
        if (&all[i] != g && atomic_load(&all[i].id) != 0 && all[i].members >= 0 &&
            all[i].members + all[i].size > used) {
            used = all[i].members + all[i].size;
        }
    }
    if ((uint64_t)used + (uint64_t)g->size <= h->members) {
        g->members = (int32_t)used;
        memcpy((char *)h + h->members_at + (uint64_t)used * sizeof(int32_t), ranks,
               (size_t)g->size * sizeof(int32_t));
    }
}

void dtr__rec_phase(dtr_world *world, dtr__world_phase phase) {
    dtr__rec_header *h = dtr__recorder_header(world);
    if (h != NULL) {
        atomic_store(&h->phase, phase);
    }
}

dtr__rec_followers *dtr__rec_group_add(dtr_world *world, uint32_t id, uint64_t uid,
                                       const char *name, int own_rank, int size,
                                       const int *world_ranks) {
    dtr__rec_header *h = dtr__recorder_header(world);
    pthread_mutex_lock(&lock);
    dtr__rec_group *g = h != NULL ? free_entry(h) : NULL;
    if (g != NULL) {
        atomic_store(&g->id, 0);
        g->gone = 0;
        g->uid = uid;
        g->size = size;
        g->own_rank = own_rank;
        g->status = DTR_OK;
        snprintf(g->name, sizeof g->name, "%s", name);
        fill_members(h, g, world_ranks);
        atomic_store(&g->followers.record, 0);
        atomic_store(&g->id, id);
    }
    pthread_mutex_unlock(&lock);
    return g != NULL ? &g->followers : NULL;
}

static dtr__rec_group *find_group(dtr__rec_header *h, uint32_t id) {
    for (uint64_t i = 0; h != NULL && i < h->groups; i++) {
        if (atomic_load(&groups_of(h)[i].id) == id) {
            return &groups_of(h)[i];
        }
    }
    return NULL;
}

void dtr__rec_group_end(dtr_world *world, uint32_t id) {
    pthread_mutex_lock(&lock);
    dtr__rec_group *g = find_group(dtr__recorder_header(world), id);
    if (g != NULL) {
        g->gone = 1;
    }
    pthread_mutex_unlock(&lock);
}

void dtr__rec_names(dtr_world *world, const char *(*kind)(int), int kinds, const char *(*op)(int),
                    int ops) {
    dtr__rec_header *h = dtr__recorder_header(world);
    for (int i = 0; h != NULL && i < kinds && i < DTR__RECORDING_KINDS; i++) {
        snprintf(h->kind[i], sizeof h->kind[i], "%s", kind(i));
    }
    for (int i = 0; h != NULL && i < ops && i < DTR__RECORDING_OPS; i++) {
        snprintf(h->op[i], sizeof h->op[i], "%s", op(i));
    }
}

/* This thread's last error into `e`. */
static void write_error(dtr__rec_error *e, dtr_status s) {
    dtr_error last = DTR_ERROR_INIT;
    dtr_last_error(&last);
    uint32_t version = atomic_load(&e->version);
    atomic_store(&e->version, version | 1);
    /* Or what follows could be seen before it: a store keeps back what is before it only. */
    atomic_thread_fence(memory_order_seq_cst);
    e->status = (int32_t)s;
    e->seq = last.seq;
    e->t = dtr__now_ns();
    snprintf(e->operation, sizeof e->operation, "%s", last.operation);
    snprintf(e->group, sizeof e->group, "%s", last.group);
    snprintf(e->text, sizeof e->text, "%s", last.message);
    atomic_store(&e->version, (version | 1) + 1);
}

bool dtr__rec_error_copy(const dtr__rec_error *e, dtr__rec_error *copy) {
    pthread_mutex_lock(&lock); /* against this process; another's write shows in the version */
    uint32_t version = atomic_load(&e->version);
    memcpy(copy, e, sizeof *copy);
    atomic_thread_fence(memory_order_seq_cst);
    bool whole = (version & 1) == 0 && atomic_load(&e->version) == version;
    pthread_mutex_unlock(&lock);
    copy->operation[sizeof copy->operation - 1] = copy->group[sizeof copy->group - 1] =
        copy->text[sizeof copy->text - 1] = '\0';
    return whole;
}

/* False for groups that the library ends itself, as those that are replaced by others. */
static bool is_evidence(dtr_status s) {
    dtr_error last = DTR_ERROR_INIT;
    dtr_last_error(&last);
    return s != DTR_ERR_ABORTED || strcmp(last.operation, "dtr_group_abort") == 0;
}

void dtr__rec_failure(dtr_world *world, uint32_t group, dtr_status s) {
    dtr__rec_header *h = dtr__recorder_header(world);
    dtr__count_broken(world, s);
    pthread_mutex_lock(&lock);
    dtr__rec_group *g = find_group(h, group);
    if (g != NULL && g->status == DTR_OK) {
        g->status = (int32_t)s;
    }
    bool first = h != NULL && atomic_load(&h->failure.version) == 0;
    /* What was ended on purpose is no reason to pass over what failed after it. */
    if (first ? is_evidence(s)
              : h != NULL && h->failure.status == DTR_ERR_ABORTED && s != DTR_ERR_ABORTED) {
        write_error(&h->failure, s);
    }
    pthread_mutex_unlock(&lock);
}

void dtr__rec_refused(dtr_world *world, dtr_status s) {
    dtr__rec_header *h = dtr__recorder_header(world);
    pthread_mutex_lock(&lock);
    if (h != NULL) {
        write_error(&h->local, s);
    }
    pthread_mutex_unlock(&lock);
}

void dtr__rec_remote_failure(dtr_world *world, const char *cause) {
    dtr__rec_header *h = dtr__recorder_header(world);
    snprintf(h->remote_failure, sizeof h->remote_failure, "%.*s", (int)sizeof h->remote_failure - 1,
             cause);
    atomic_fetch_add(&h->remote_failures, 1);
}

void dtr__rec_progress_moves(dtr_world *world) {
    dtr__rec_header *h = dtr__recorder_header(world);
    if (h != NULL) {
        atomic_store(&h->progress_still_ns, 0);
    }
}
