/* From keys and values to memory that all ranks have mapped. Each rank puts who it is; rank 0 looks
 * at all of them, makes a file and puts how to find it; each puts whether it has mapped it, and
 * rank 0 puts what comes of that: to go on, to try it another way, or why not. So every rank but
 * rank 0 gets a few values, however many ranks there are. */
#include "bootstrap/bootstrap.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <dtr/version.h>

#include "base/clock.h"
#include "base/private_fd.h"
#include "memory/arena_file.h"

enum { PREFIX_MAX = 40, KEY_SIZE = 64, NAMED_NODES = 4, GRACE_S = 5, WAYS = 2 };
#define MAGIC UINT64_C(0x6474722d626f6f74)
#define WHAT "world creation: "

/* What a rank is. */
typedef struct hello {
    uint64_t magic;
    int32_t version, size;
    char host[64], machine[40]; /* "": not known */
} hello;

/* What rank 0 says: how to find the file, and then what comes of it. */
typedef struct plan {
    int32_t status, again; /* again: the other way to share is tried */
    offer file;
    char text[1024];
} plan;

/* What each rank says of the file. */
typedef struct report {
    int32_t mapped;
    char text[200];
} report;

typedef struct boot {
    dtr_bootstrap b;
    double end, limit_s;
    int most;
} boot;

/* ---- keys and values ---- */

static const char *key_of(const boot *o, const char *what, int rank, char *key) {
    const char *prefix = o->b.prefix != NULL && o->b.prefix[0] != '\0' ? o->b.prefix : "dtr";
    snprintf(key, KEY_SIZE, "%s/%s.%d", prefix, what, rank);
    return key;
}

static dtr_status put(const boot *o, const char *what, int rank, const void *value, size_t nbytes) {
    char key[KEY_SIZE];
    const dtr_status s = o->b.put(o->b.arg, key_of(o, what, rank, key), value, nbytes);
    DTR_REQUIRE(s >= 0, NULL, s, WHAT "the program's put of key '%s' returned %s", key,
                dtr_status_name(s));
    return DTR_OK;
}

/* `of`: the rank whose value it is. */
static dtr_status get(const boot *o, const char *what, int rank, int of, void *value,
                      size_t nbytes) {
    char key[KEY_SIZE];
    size_t n = 0;
    const double left_s = o->end - dtr__now() + (o->b.rank == 0 ? 0 : GRACE_S);
    const dtr_status s = o->b.get(o->b.arg, key_of(o, what, rank, key), value, nbytes, &n,
                                  left_s > 0.001 ? left_s : 0.001);
    DTR_REQUIRE(s != DTR_ERR_TIMEOUT, NULL, s,
                WHAT "rank %d has waited %g s for rank %d, which has not put key '%s'. It has "
                     "ended before, does not create the world, or has another store or prefix",
                o->b.rank, o->limit_s, of, key);
    DTR_REQUIRE(s >= 0, NULL, s, WHAT "the program's get of key '%s' returned %s", key,
                dtr_status_name(s));
    DTR_REQUIRE(n == nbytes, NULL, DTR_ERR_MISMATCH,
                WHAT "key '%s' has %zu bytes, and not the %zu of this library: do several worlds, "
                     "or versions of the library, use one prefix?",
                key, n, nbytes);
    return DTR_OK;
}

/* ---- who is where ---- */

static void describe_own(const boot *o, hello *h) {
    *h = (hello){ .magic = MAGIC, .version = DTR_VERSION, .size = o->b.size };
    if (gethostname(h->host, sizeof h->host - 1) != 0) {
        strcpy(h->host, "?");
    }
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f == NULL || fgets(h->machine, sizeof h->machine, f) == NULL) {
        h->machine[0] = '\0';
    }
    if (f != NULL) {
        fclose(f);
    }
}

static bool is_one_host(const hello *a, const hello *b) {
    return a->machine[0] != '\0' && b->machine[0] != '\0'
               ? memcmp(a->machine, b->machine, sizeof a->machine) == 0
               : strncmp(a->host, b->host, sizeof a->host) == 0;
}

/* One version and one size; the magic number comes first, and the version, in all versions. */
static dtr_status compare(const boot *o, const hello *all) {
    for (int r = 0; r < o->b.size; r++) {
        DTR_REQUIRE(all[r].magic == MAGIC && all[r].version == DTR_VERSION, NULL, DTR_ERR_MISMATCH,
                    WHAT "the ranks run different versions of the library: rank %d has number %d, "
                         "rank 0 has %d; all must load the same",
                    r, (int)all[r].version, DTR_VERSION);
        DTR_REQUIRE(all[r].size == o->b.size, NULL, DTR_ERR_MISMATCH,
                    WHAT "dtr_bootstrap.size is %d on rank 0 and %d on rank %d; all must give the "
                         "same",
                    o->b.size, (int)all[r].size, r);
    }
    return DTR_OK;
}

/* DTR_NODE_RANKS makes several nodes of a host, in the order of its ranks. */
static void find_nodes(const boot *o, const hello *all, int *node) {
    int n = 0;
    for (int r = 0; r < o->b.size; r++) {
        int before = 0, same = -1;
        for (int i = 0; i < r; i++) {
            if (is_one_host(&all[i], &all[r])) {
                before++;
                same = node[i]; /* the newest node of the host */
            }
        }
        node[r] = same >= 0 && (o->most == 0 || before % o->most != 0) ? same : n++;
    }
}

/* Their memory is what the ranks of such a world have. Says which nodes there are otherwise. */
static dtr_status require_one_node(const boot *o, const hello *all, const int *node) {
    char text[NAMED_NODES * 160] = "";
    int n_nodes = 0;
    size_t at = 0;
    for (int r = 0; r < o->b.size; r++) {
        if (node[r] < n_nodes) {
            continue;
        }
        if (n_nodes++ < NAMED_NODES) {
            int others = -1;
            for (int i = 0; i < o->b.size; i++) {
                others += node[i] == node[r];
            }
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%.63s (rank %d",
                                   at > 0 ? ", " : "", all[r].host, r);
            at += (size_t)snprintf(text + at, sizeof text - at, others > 0 ? " and %d more)" : ")",
                                   others);
        }
    }
    DTR_REQUIRE(n_nodes == 1, NULL, DTR_ERR_UNSUPPORTED,
                WHAT "its %d ranks are on %d nodes: %s%s. Without MPI the ranks of a world need "
                     "memory that they all share: give each node a world of its own, or start the "
                     "program by mpirun and leave dtr_world_options.bootstrap NULL",
                o->b.size, n_nodes, text, n_nodes > NAMED_NODES ? " and others" : "");
    return DTR_OK;
}

static dtr_status look_at_all(const boot *o, const hello *own) {
    const size_t n = (size_t)o->b.size;
    hello *all = calloc(n, sizeof *all);
    int *node = calloc(n, sizeof *node);
    dtr_status s = all != NULL && node != NULL
                       ? DTR_OK
                       : DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for the facts of %zu ranks", n);
    for (int r = 1; r < o->b.size && s == DTR_OK; r++) {
        s = get(o, "rank", r, r, &all[r], sizeof all[r]);
    }
    if (s == DTR_OK) {
        all[0] = *own;
        s = compare(o, all);
    }
    if (s == DTR_OK) {
        find_nodes(o, all, node);
        s = require_one_node(o, all, node);
    }
    free(all);
    free(node);
    return s;
}

/* ---- the file ---- */

/* A new file for the way to share, 0 or 1. Places in /dev/shm are taken now: touching them when it
 * is full would raise SIGBUS. */
static dtr_status make_file(const boot *o, bool named, offer *file, int *fd) {
    char why[160] = "no place in /dev/shm";
    const uint64_t least = dtr__inbox_bytes(o->b.size), grain = DTR__ARENA_GRAIN;
    *file = (offer){ .pid = (int)getpid(), .fd = -1, .size = (least + grain - 1) / grain * grain };
    const uint64_t size = file->size;
    dtr__private_fd_begin();
    *fd = dtr__private_fd_end(dtr__arena_file_make(file, named, 1, why, sizeof why));
    const bool got =
        *fd >= 0 && file->size == size && (!named || posix_fallocate(*fd, 0, (off_t)size) == 0);
    DTR_REQUIRE(got, NULL, DTR_ERR_SYSTEM, WHAT "no memory to share: %s", why);
    return DTR_OK;
}

static void unmake_file(const offer *file, int fd) {
    if (fd >= 0) {
        dtr__private_fd_close(fd);
    }
    if (file->name[0] != '\0') {
        shm_unlink(file->name); /* all have it, or nobody will */
    }
}

/* Maps it; NULL: `r` says why not. */
static dtr__inbox *map_file(const boot *o, const offer *file, int own_fd, report *r) {
    const int fd = own_fd >= 0 ? own_fd : dtr__arena_file_open(file);
    void *p = mmap(NULL, file->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    dtr__inbox *inbox = NULL;
    if (p == MAP_FAILED) {
        snprintf(r->text, sizeof r->text, "mmap: %s", strerror(errno));
    } else if (dtr__arena_file_map(p, file, fd, own_fd >= 0, r->text, sizeof r->text) == SHARED) {
        inbox = dtr__inbox_new(p, file->size, o->b.rank, o->b.size, o->limit_s);
        if (inbox == NULL) {
            snprintf(r->text, sizeof r->text, "no memory");
        }
    }
    if (inbox == NULL && p != MAP_FAILED) {
        munmap(p, file->size);
    }
    if (fd >= 0 && own_fd < 0) {
        close(fd);
    }
    const int other = inbox != NULL ? dtr__inbox_claim(inbox) : 0;
    if (other != 0) {
        snprintf(r->text, sizeof r->text, "process %d says that it is rank %d, and so does %d",
                 (int)getpid(), o->b.rank, other);
        dtr__inbox_free(inbox);
        inbox = NULL;
    }
    r->mapped = inbox != NULL;
    return inbox;
}

/* ---- rank 0's part ---- */

static void keep_error(plan *p, dtr_status s) {
    p->status = s;
    snprintf(p->text, sizeof p->text, "%s", dtr_last_error_message());
}

/* What all say of the file, for the try `way`. */
static dtr_status judge(const boot *o, int way, const dtr__inbox *inbox, const report *own,
                        plan *p) {
    char what[16];
    snprintf(what, sizeof what, "file%d", way);
    for (int r = 0; r < o->b.size; r++) {
        report one = *own;
        if (r > 0) {
            DTR_TRY(get(o, what, r, r, &one, sizeof one));
        }
        one.text[sizeof one.text - 1] = '\0';
        p->again = p->again || (!one.mapped && way + 1 < WAYS);
        DTR_REQUIRE(one.mapped || p->again, NULL, DTR_ERR_UNSUPPORTED,
                    WHAT "rank %d cannot share memory with rank 0: %s. Without MPI the ranks of a "
                         "world need that",
                    r, one.text);
        DTR_REQUIRE(!one.mapped || inbox == NULL || dtr__inbox_pid(inbox, r) != 0, NULL,
                    DTR_ERR_MISMATCH,
                    WHAT "what rank %d has put is of an earlier world: give each world a store or "
                         "a prefix of its own",
                    r);
    }
    return DTR_OK;
}

/* Puts a plan; whatever has failed before, the others learn of it here. */
static dtr_status announce(const boot *o, const char *what, int way, plan *p, dtr_status s) {
    if (s < 0) {
        keep_error(p, s);
    }
    const dtr_status sent = put(o, what, way, p, sizeof *p);
    return s < 0 ? DTR_FAIL(NULL, s, "%s", p->text) : sent;
}

/* One try; DTR_IN_PROGRESS: another way may do. */
static dtr_status lead(const boot *o, const hello *self, int way, dtr__inbox **inbox) {
    plan p = { 0 };
    report own = { 0 };
    int fd = -1;
    dtr_status s = way == 0 ? look_at_all(o, self) : DTR_OK;
    if (s == DTR_OK && way > 0) {
        dtr__arena_files_sweep();
    }
    s = s == DTR_OK ? make_file(o, way > 0, &p.file, &fd) : s;
    s = announce(o, "plan", way, &p, s);
    if (s == DTR_OK) {
        *inbox = map_file(o, &p.file, fd, &own);
        s = announce(o, "go", way, &p, judge(o, way, *inbox, &own, &p));
    }
    unmake_file(&p.file, fd);
    return s == DTR_OK && p.again ? DTR_IN_PROGRESS : s;
}

/* ---- the others' ---- */

static dtr_status receive_plan(const boot *o, const char *what, int way, plan *p) {
    DTR_TRY(get(o, what, way, 0, p, sizeof *p));
    p->text[sizeof p->text - 1] = p->file.name[sizeof p->file.name - 1] = '\0';
    DTR_REQUIRE(p->status == DTR_OK, NULL, (dtr_status)p->status, "%s", p->text);
    DTR_REQUIRE(p->file.size >= dtr__inbox_bytes(o->b.size), NULL, DTR_ERR_MISMATCH,
                WHAT "key '%s' is none of this library", what);
    return DTR_OK;
}

static dtr_status follow(const boot *o, int way, dtr__inbox **inbox) {
    plan p;
    report own = { 0 };
    char what[16];
    snprintf(what, sizeof what, "file%d", way);
    DTR_TRY(receive_plan(o, "plan", way, &p));
    *inbox = map_file(o, &p.file, -1, &own);
    DTR_TRY(put(o, what, o->b.rank, &own, sizeof own));
    DTR_TRY(receive_plan(o, "go", way, &p));
    return p.again ? DTR_IN_PROGRESS : DTR_OK;
}

/* ---- both ---- */

static dtr_status check(const dtr_bootstrap *b) {
    DTR_REQUIRE(b->size >= 1 && b->rank >= 0 && b->rank < b->size, NULL, DTR_ERR_ARG,
                "dtr_bootstrap: rank %d of %d; ranks are 0 to size - 1, and size is 1 at least",
                b->rank, b->size);
    DTR_REQUIRE(b->put != NULL && b->get != NULL, NULL, DTR_ERR_ARG,
                "dtr_bootstrap.%s is NULL; both put and get are needed",
                b->put == NULL ? "put" : "get");
    DTR_REQUIRE(b->prefix == NULL || strlen(b->prefix) <= PREFIX_MAX, NULL, DTR_ERR_ARG,
                "dtr_bootstrap.prefix has %zu bytes; %d is the most", strlen(b->prefix),
                PREFIX_MAX);
    return DTR_OK;
}

dtr_status dtr__bootstrap_open(const dtr_bootstrap *given, int most, double limit_s,
                               dtr__inbox **inbox) {
    boot o = { .end = dtr__now() + limit_s, .limit_s = limit_s, .most = most };
    hello own;
    dtr__inbox *found = NULL;
    dtr_status s = DTR_IN_PROGRESS;
    DTR_TRY(dtr__options_copy(given, &o.b, sizeof o.b, "dtr_bootstrap"));
    DTR_TRY(check(&o.b));
    describe_own(&o, &own);
    DTR_TRY(put(&o, "rank", o.b.rank, &own, sizeof own));
    for (int way = 0; s == DTR_IN_PROGRESS && way < WAYS; way++) {
        dtr__inbox_free(found);
        found = NULL;
        s = o.b.rank == 0 ? lead(&o, &own, way, &found) : follow(&o, way, &found);
    }
    if (s != DTR_OK) {
        DTR_CLEAN_UP(s, dtr__inbox_free(found));
        return s;
    }
    *inbox = found;
    return DTR_OK;
}
