/* From keys and values to ranks that reach each other. Each rank puts who it is; rank 0 looks at
 * all of them, tells each which ranks share its node, and puts how many nodes there are. The lowest
 * rank of each node then makes a file and puts how to find it; each of the node puts whether it has
 * mapped it, and the maker puts what comes of that: to go on, to try it another way, or why not.
 * Where there are several nodes each rank listens, puts at which ports, or why it has failed, and
 * rank 0 puts what comes of all that. So every rank but rank 0 gets a few values, however many
 * ranks there are. */
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

enum { PREFIX_MAX = 40, KEY_SIZE = 64, VALUE_MAX = 4096, GRACE_S = 5, WAYS = 2 };
#define MAGIC UINT64_C(0x6474722d626f6f74)
#define WHAT "world creation: "

/* What a rank is. */
typedef struct hello {
    uint64_t magic;
    int32_t version, size;
    int32_t hmac, unused;       /* built with it */
    char host[64], machine[40]; /* "": not known */
} hello;

/* What rank 0 says of all. */
typedef struct plan {
    int32_t status, n_nodes;
    int32_t hmac, unused; /* from here on only where there are several */
    unsigned char key[DTR__KEY_BYTES];
    dtr__tcp_place first; /* where rank 0 can be reached */
    char text[1024];
} plan;

/* And to one rank, where there are several nodes: the ranks of its node. */
typedef struct node_ranks {
    int32_t n, rank[VALUE_MAX / sizeof(int32_t) - 1];
} node_ranks;

/* What the lowest rank of a node says: how to find the file, and then what comes of it. */
typedef struct file_plan {
    int32_t status, again; /* again: the other way to share is tried */
    offer file;
    char text[1024];
} file_plan;

/* What each rank says of the file. */
typedef struct report {
    int32_t mapped;
    char text[200];
} report;

/* How far a rank has come, and how to reach it; and then, from rank 0, how far all have. */
typedef struct ready {
    int32_t status, unused;
    dtr__tcp_place place;
    char text[1024];
} ready;

/* Of a rank, as rank 0 tells all of them in the end. */
typedef struct entry {
    int32_t node, host;
    dtr__tcp_place place;
} entry;

typedef struct boot {
    dtr_bootstrap b;
    dtr__bootstrap_settings set;
    double end;
    hello own;
    entry *all;        /* [size], of rank 0 until all have it */
    const int *member; /* the ranks of this node */
    int n_members;
    dtr__tcp *tcp; /* NULL: there is one node */
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

/* `of`: the rank whose value it is; *n: its length. */
static dtr_status get_some(const boot *o, const char *what, int rank, int of, void *value,
                           size_t cap, size_t *n) {
    char key[KEY_SIZE];
    *n = 0;
    const double left_s = o->end - dtr__now() + (o->b.rank == 0 ? 0 : GRACE_S);
    const dtr_status s = o->b.get(o->b.arg, key_of(o, what, rank, key), value, cap, n,
                                  left_s > 0.001 ? left_s : 0.001);
    DTR_REQUIRE(s != DTR_ERR_TIMEOUT, NULL, s,
                WHAT "rank %d has waited %g s for rank %d, which has not put key '%s'. It has "
                     "ended before, does not create the world, or has another store or prefix",
                o->b.rank, o->set.limit_s, of, key);
    DTR_REQUIRE(s >= 0, NULL, s, WHAT "the program's get of key '%s' returned %s", key,
                dtr_status_name(s));
    return DTR_OK;
}

static dtr_status get(const boot *o, const char *what, int rank, int of, void *value,
                      size_t nbytes) {
    char key[KEY_SIZE];
    size_t n;
    DTR_TRY(get_some(o, what, rank, of, value, nbytes, &n));
    DTR_REQUIRE(n == nbytes, NULL, DTR_ERR_MISMATCH,
                WHAT "key '%s' has %zu bytes, and not the %zu of this library: do several worlds, "
                     "or versions of the library, use one prefix?",
                key_of(o, what, rank, key), n, nbytes);
    return DTR_OK;
}

/* ---- who is where ---- */

static void describe_own(const boot *o, hello *h) {
    *h = (hello){ .magic = MAGIC, .version = DTR_VERSION, .size = o->b.size };
    h->hmac = dtr__proof_has_hmac();
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

/* DTR_NODE_RANKS makes several nodes of a host, in the order of its ranks. Returns how many. */
static int find_nodes(const boot *o, const hello *all) {
    int n = 0, n_hosts = 0;
    for (int r = 0; r < o->b.size; r++) {
        int before = 0, same = -1;
        entry *e = &o->all[r];
        e->host = -1;
        for (int i = 0; i < r; i++) {
            if (is_one_host(&all[i], &all[r])) {
                before++;
                e->host = o->all[i].host;
                same = o->all[i].node; /* the newest node of the host */
            }
        }
        e->host = e->host >= 0 ? e->host : n_hosts++;
        e->node = same >= 0 && (o->set.most == 0 || before % o->set.most != 0) ? same : n++;
    }
    return n;
}

/* Each rank learns which ranks share its node. */
static dtr_status put_nodes(const boot *o) {
    node_ranks v;
    for (int r = 0; r < o->b.size; r++) {
        v.n = 0;
        for (int i = 0; i < o->b.size; i++) {
            if (o->all[i].node == o->all[r].node) {
                DTR_REQUIRE(v.n < (int)(sizeof v.rank / sizeof v.rank[0]), NULL,
                            DTR_ERR_UNSUPPORTED,
                            WHAT "more than %d ranks are on one node of several", (int)v.n);
                v.rank[v.n++] = i;
            }
        }
        DTR_TRY(put(o, "node", r, &v, sizeof v.n + (size_t)v.n * sizeof v.rank[0]));
    }
    return DTR_OK;
}

static dtr_status listen_here(boot *o) {
    return dtr__tcp_new(o->b.rank, o->b.size, o->set.interface, o->own.host, o->set.silence_s,
                        &o->tcp);
}

/* Rank 0's: how ranks of several nodes know each other, with HMAC if all have it. */
static dtr_status prepare_nodes(boot *o, const hello *all, plan *p) {
    p->hmac = 1;
    for (int r = 0; r < o->b.size; r++) {
        p->hmac = p->hmac && all[r].hmac;
    }
    DTR_REQUIRE(dtr__proof_random(p->key, sizeof p->key), NULL, DTR_ERR_SYSTEM,
                WHAT "the kernel has no random numbers");
    DTR_TRY(listen_here(o));
    p->first = *dtr__tcp_place_of(o->tcp, 0);
    return put_nodes(o);
}

static dtr_status look_at_all(boot *o, plan *p) {
    const size_t n = (size_t)o->b.size;
    hello *all = calloc(n, sizeof *all);
    o->all = calloc(n, sizeof *o->all);
    dtr_status s = all != NULL && o->all != NULL
                       ? DTR_OK
                       : DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for the facts of %zu ranks", n);
    for (int r = 1; r < o->b.size && s == DTR_OK; r++) {
        s = get(o, "rank", r, r, &all[r], sizeof all[r]);
    }
    if (s == DTR_OK) {
        all[0] = o->own;
        s = compare(o, all);
    }
    if (s == DTR_OK) {
        p->n_nodes = find_nodes(o, all);
        s = p->n_nodes > 1 ? prepare_nodes(o, all, p) : DTR_OK;
    }
    free(all);
    return s;
}

/* ---- the file ---- */

/* A new file for the way to share, 0 or 1. Places in /dev/shm are taken now: touching them when it
 * is full would raise SIGBUS. */
static dtr_status make_file(const boot *o, bool named, offer *file, int *fd) {
    char why[160] = "no place in /dev/shm";
    const uint64_t least = dtr__inbox_bytes(o->n_members), grain = DTR__ARENA_GRAIN;
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
        inbox = dtr__inbox_new(p, file->size, o->b.rank, o->b.size, o->member, o->n_members,
                               o->set.limit_s);
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

/* ---- the file: the part of the lowest rank of a node ---- */

/* The others learn of what has failed here by the value that they wait for. */
static void keep_error(dtr_status s, int32_t *status, char *text, size_t cap) {
    if (s < 0) {
        *status = s;
        snprintf(text, cap, "%s", dtr_last_error_message());
    }
}

/* What all say of the file, for the try `way`. */
static dtr_status judge(const boot *o, int way, const dtr__inbox *inbox, const report *own,
                        file_plan *p) {
    char what[16];
    snprintf(what, sizeof what, "file%d", way);
    for (int i = 0; i < o->n_members; i++) {
        const int r = o->member[i];
        report one = *own;
        if (r != o->b.rank) {
            DTR_TRY(get(o, what, r, r, &one, sizeof one));
        }
        one.text[sizeof one.text - 1] = '\0';
        p->again = p->again || (!one.mapped && way + 1 < WAYS);
        DTR_REQUIRE(one.mapped || p->again, NULL, DTR_ERR_UNSUPPORTED,
                    WHAT "rank %d cannot share memory with rank %d: %s. Without MPI the ranks of a "
                         "node need that",
                    r, o->b.rank, one.text);
        DTR_REQUIRE(!one.mapped || inbox == NULL || dtr__inbox_pid(inbox, r) != 0, NULL,
                    DTR_ERR_MISMATCH,
                    WHAT "what rank %d has put is of an earlier world: give each world a store or "
                         "a prefix of its own",
                    r);
    }
    return DTR_OK;
}

/* Puts a plan; whatever has failed before, the others learn of it here. */
static dtr_status announce(const boot *o, const char *name, int way, file_plan *p, dtr_status s) {
    char what[16];
    snprintf(what, sizeof what, "%s%d", name, way);
    keep_error(s, &p->status, p->text, sizeof p->text);
    const dtr_status sent = put(o, what, o->b.rank, p, sizeof *p);
    return s < 0 ? DTR_FAIL(NULL, s, "%s", p->text) : sent;
}

/* One try; DTR_IN_PROGRESS: another way may do. */
static dtr_status lead(const boot *o, int way, dtr__inbox **inbox) {
    file_plan p = { 0 };
    report own = { 0 };
    int fd = -1;
    if (way > 0) {
        dtr__arena_files_sweep();
    }
    dtr_status s = announce(o, "map", way, &p, make_file(o, way > 0, &p.file, &fd));
    if (s == DTR_OK) {
        *inbox = map_file(o, &p.file, fd, &own);
        s = announce(o, "go", way, &p, judge(o, way, *inbox, &own, &p));
    }
    unmake_file(&p.file, fd);
    return s == DTR_OK && p.again ? DTR_IN_PROGRESS : s;
}

/* ---- the others' ---- */

static dtr_status receive_plan(const boot *o, const char *name, int way, file_plan *p) {
    char what[16];
    snprintf(what, sizeof what, "%s%d", name, way);
    DTR_TRY(get(o, what, o->member[0], o->member[0], p, sizeof *p));
    p->text[sizeof p->text - 1] = p->file.name[sizeof p->file.name - 1] = '\0';
    DTR_REQUIRE(p->status == DTR_OK, NULL, (dtr_status)p->status, "%s", p->text);
    DTR_REQUIRE(p->file.size >= dtr__inbox_bytes(o->n_members), NULL, DTR_ERR_MISMATCH,
                WHAT "key '%s.%d' is none of this library", what, o->member[0]);
    return DTR_OK;
}

static dtr_status follow(const boot *o, int way, dtr__inbox **inbox) {
    file_plan p;
    report own = { 0 };
    char what[16];
    snprintf(what, sizeof what, "file%d", way);
    DTR_TRY(receive_plan(o, "map", way, &p));
    *inbox = map_file(o, &p.file, -1, &own);
    DTR_TRY(put(o, what, o->b.rank, &own, sizeof own));
    DTR_TRY(receive_plan(o, "go", way, &p));
    return p.again ? DTR_IN_PROGRESS : DTR_OK;
}

static dtr_status share_memory(const boot *o, dtr__inbox **inbox) {
    dtr_status s = DTR_IN_PROGRESS;
    for (int way = 0; s == DTR_IN_PROGRESS && way < WAYS; way++) {
        dtr__inbox_free(*inbox);
        *inbox = NULL;
        s = o->b.rank == o->member[0] ? lead(o, way, inbox) : follow(o, way, inbox);
    }
    return s;
}

/* ---- who is where, for all ---- */

static dtr_status receive_nodes(boot *o, const plan *p, int *member) {
    node_ranks v = { 0 };
    size_t n = 0;
    bool here = p->n_nodes <= 1;
    o->member = member;
    o->n_members = o->b.size;
    for (int i = 0; i < o->b.size; i++) {
        member[i] = i;
    }
    if (here) {
        return DTR_OK;
    }
    DTR_TRY(get_some(o, "node", o->b.rank, 0, &v, sizeof v, &n));
    bool fine = v.n >= 1 && v.n <= o->b.size && n == sizeof v.n + (size_t)v.n * sizeof v.rank[0];
    for (int i = 0, least = 0; i < v.n && fine; i++) { /* they ascend */
        fine = v.rank[i] >= least && v.rank[i] < o->b.size;
        member[i] = v.rank[i];
        here |= v.rank[i] == o->b.rank;
        least = v.rank[i] + 1;
    }
    DTR_REQUIRE(fine && here, NULL, DTR_ERR_MISMATCH, WHAT "key 'node.%d' is none of this library",
                o->b.rank);
    o->n_members = v.n;
    return DTR_OK;
}

/* Rank 0 looks at all ranks, and all learn what it has found. */
static dtr_status plan_world(boot *o, plan *p) {
    if (o->b.rank != 0) {
        DTR_TRY(get(o, "plan", 0, 0, p, sizeof *p));
        p->text[sizeof p->text - 1] = '\0';
        return p->status == DTR_OK ? DTR_OK : DTR_FAIL(NULL, (dtr_status)p->status, "%s", p->text);
    }
    const dtr_status s = look_at_all(o, p);
    keep_error(s, &p->status, p->text, sizeof p->text);
    const dtr_status sent = put(o, "plan", 0, p, sizeof *p);
    return s < 0 ? DTR_FAIL(NULL, s, "%s", p->text) : sent;
}

/* ---- several nodes ---- */

/* Rank 0's: the first failure of a rank, if there is any, and where they all are. */
static dtr_status gather_ready(const boot *o, ready *first) {
    for (int r = 0; r < o->b.size; r++) {
        ready one = *first;
        if (r > 0) {
            DTR_TRY(get(o, "ready", r, r, &one, sizeof one));
        }
        one.text[sizeof one.text - 1] = '\0';
        DTR_REQUIRE(one.status == DTR_OK, NULL, (dtr_status)one.status, "%s", one.text);
        o->all[r].place = one.place;
        dtr__tcp_set_place(o->tcp, r, &one.place);
    }
    return DTR_OK;
}

/* All agree on whether all have come so far; `s`: whether this rank has. */
static dtr_status join_nodes(boot *o, const plan *p, dtr_status s) {
    ready own = { 0 };
    if (o->tcp == NULL && s == DTR_OK) {
        s = listen_here(o);
    }
    if (o->tcp != NULL) {
        own.place = *dtr__tcp_place_of(o->tcp, o->b.rank);
        dtr__tcp_set_key(o->tcp, p->key, p->hmac != 0);
    }
    keep_error(s, &own.status, own.text, sizeof own.text);
    if (o->b.rank == 0) {
        s = gather_ready(o, &own);
        keep_error(s, &own.status, own.text, sizeof own.text);
    }
    const dtr_status sent = put(o, o->b.rank == 0 ? "all" : "ready", o->b.rank, &own, sizeof own);
    if (s < 0) {
        return DTR_FAIL(NULL, s, "%s", own.text);
    }
    DTR_TRY(sent);
    if (o->b.rank != 0) {
        DTR_TRY(get(o, "all", 0, 0, &own, sizeof own));
        own.text[sizeof own.text - 1] = '\0';
        DTR_REQUIRE(own.status == DTR_OK, NULL, (dtr_status)own.status, "%s", own.text);
        dtr__tcp_set_place(o->tcp, 0, &p->first);
    }
    return DTR_OK;
}

/* From rank 0, over the connections themselves: where everybody is. */
static dtr_status learn_places(boot *o, dtr__inbox *inbox) {
    const size_t n = (size_t)o->b.size;
    const dtr__members all = { .ops = &dtr__exchange_over_inbox,
                               .inbox = inbox,
                               .rank = o->b.rank,
                               .size = o->b.size,
                               .uid = DTR__MEMBERS_OF_WORLD };
    int *host = calloc(n, sizeof *host), n_host = 0;
    if (o->all == NULL) {
        o->all = calloc(n, sizeof *o->all);
    }
    dtr__inbox_set_host(inbox, host, 0);
    DTR_REQUIRE(o->all != NULL && host != NULL, NULL, DTR_ERR_NOMEM,
                "no memory for the places of %zu ranks", n);
    DTR_TRY(dtr__exchange_broadcast(all, o->all, n * sizeof *o->all, 0));
    for (int r = 0; r < o->b.size; r++) {
        dtr__tcp_set_place(o->tcp, r, &o->all[r].place);
        host[n_host] = r;
        n_host += o->all[r].host == o->all[o->b.rank].host;
    }
    dtr__inbox_set_host(inbox, host, n_host);
    return DTR_OK;
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

static dtr_status open_all(boot *o, int *member, dtr__inbox **inbox) {
    plan p = { 0 };
    DTR_TRY(put(o, "rank", o->b.rank, &o->own, sizeof o->own));
    DTR_TRY(plan_world(o, &p));
    dtr_status s = receive_nodes(o, &p, member);
    s = s == DTR_OK ? share_memory(o, inbox) : s;
    if (p.n_nodes <= 1) {
        return s;
    }
    DTR_TRY(join_nodes(o, &p, s));
    dtr__inbox_use_tcp(*inbox, o->tcp);
    return learn_places(o, *inbox);
}

dtr_status dtr__bootstrap_open(const dtr_bootstrap *given, const dtr__bootstrap_settings *set,
                               dtr__inbox **inbox) {
    boot o = { .set = *set, .end = dtr__now() + set->limit_s };
    dtr__inbox *found = NULL;
    DTR_TRY(dtr__options_copy(given, &o.b, sizeof o.b, "dtr_bootstrap"));
    DTR_TRY(check(&o.b));
    describe_own(&o, &o.own);
    int *member = calloc((size_t)o.b.size, sizeof *member);
    dtr_status s = member != NULL
                       ? open_all(&o, member, &found)
                       : DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for %d ranks", o.b.size);
    free(member);
    free(o.all);
    if (s != DTR_OK) {
        if (found == NULL || dtr__inbox_tcp(found) == NULL) {
            DTR_CLEAN_UP(s, dtr__tcp_free(o.tcp));
        }
        DTR_CLEAN_UP(s, dtr__inbox_free(found));
        return s;
    }
    *inbox = found;
    return DTR_OK;
}
