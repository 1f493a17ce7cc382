/* Life of communicators: identifier, init, split, finalize, destroy, abort, asynchronous state. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "double_nccl.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *list; /* list_lock */

static const char MAGIC[8] = "dtrfake";

typedef struct identifier {
    char magic[8];
    int32_t pid;
    uint64_t nonce;
} identifier;

static void list_add(struct ncclComm *c) {
    fake_lock(&list_lock);
    c->next = list;
    list = c;
    fake_unlock(&list_lock);
}

/* False: not a live communicator. */
static bool list_find(const struct ncclComm *c, bool take) {
    fake_lock(&list_lock);
    struct ncclComm **at = &list;
    while (*at != NULL && *at != c) {
        at = &(*at)->next;
    }
    bool found = *at != NULL;
    if (found && take) {
        *at = c->next;
    }
    fake_unlock(&list_lock);
    return found;
}

ncclResult_t dn_check_live(struct ncclComm *c, const char *function) {
    if (c == NULL || !list_find(c, false)) {
        dn_set_error(NULL, "%s: %s", function, c == NULL ? "comm is NULL" : "no such communicator");
        if (c != NULL) {
            fprintf(stderr, "fake nccl: %s with a communicator that is gone\n", function);
        }
        return ncclInvalidArgument;
    }
    return ncclSuccess;
}

ncclResult_t dn_check_comm(struct ncclComm *c, const char *function) {
    ncclResult_t r = dn_check_live(c, function);
    if (r != ncclSuccess) {
        return r;
    }
    int state = atomic_load(&c->state);
    if (state == ncclInProgress) {
        dn_set_error(c, "%s: the call before is still in progress", function);
        return ncclInvalidArgument;
    }
    return (ncclResult_t)state;
}

void dn_fail(struct ncclComm *c, ncclResult_t r) {
    int state = atomic_load(&c->state);
    while ((state == ncclSuccess || state == ncclInProgress) &&
           !atomic_compare_exchange_weak(&c->state, &state, r)) {
    }
}

/* ---- threads of non-blocking calls ---- */

typedef struct late {
    struct ncclComm *comm;
    void *(*fn)(void *);
    void *arg;
} late;

static void *late_main(void *arg) {
    late l = *(late *)arg;
    free(arg);
    l.fn(l.arg);
    int state = ncclInProgress;
    atomic_compare_exchange_strong(&l.comm->state, &state, ncclSuccess);
    return NULL;
}

static void join_late(struct ncclComm *c) {
    fake_lock(&c->lock);
    bool has = c->has_late;
    pthread_t t = c->late;
    c->has_late = false;
    fake_unlock(&c->lock);
    if (has) {
        pthread_join(t, NULL);
    }
}

ncclResult_t dn_run_late(struct ncclComm *c, void *(*fn)(void *), void *arg) {
    late *l = malloc(sizeof *l);
    if (l == NULL) {
        return ncclSystemError;
    }
    *l = (late){ c, fn, arg };
    join_late(c);
    int state = ncclSuccess;
    atomic_compare_exchange_strong(&c->state, &state, ncclInProgress);
    fake_lock(&c->lock);
    c->has_late = pthread_create(&c->late, NULL, late_main, l) == 0;
    bool good = c->has_late;
    fake_unlock(&c->lock);
    if (!good) {
        free(l);
        dn_fail(c, ncclSystemError);
        return ncclSystemError;
    }
    return ncclInProgress;
}

void dn_inside(struct ncclComm *c, int more) {
    fake_before(&c->inside);
    atomic_fetch_add(&c->inside, more);
}

ncclResult_t dn_start(struct ncclComm *c, void *(*fn)(void *), void *arg) {
    if (dn_in_group()) {
        return dn_group_add_thread(c, fn, arg);
    }
    if (!c->blocking) {
        return dn_run_late(c, fn, arg);
    }
    dn_inside(c, 1);
    fn(arg);
    ncclResult_t state = (ncclResult_t)atomic_load(&c->state);
    dn_inside(c, -1);
    return state;
}

/* ---- creation ---- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    DN_ENTER("ncclGetUniqueId");
    if (id == NULL) {
        return ncclInvalidArgument;
    }
    dn_sweep();
    identifier made = { .pid = (int32_t)getpid(), .nonce = dn_nonce() };
    memcpy(made.magic, MAGIC, sizeof MAGIC);
    memset(id, 0, sizeof *id);
    memcpy(id, &made, sizeof made);
    return ncclSuccess;
}

/* The user's blocking field of a config, which may be that of another version. */
static bool is_blocking(const ncclConfig_t *config, bool inherited) {
    const char *v = getenv("NCCL_COMM_BLOCKING");
    if (v != NULL && v[0] != '\0') {
        return atoi(v) != 0;
    }
    return config == NULL || config->blocking == NCCL_CONFIG_UNDEF_INT ? inherited
                                                                       : config->blocking != 0;
}

static int or_unset(int value) {
    return value == NCCL_CONFIG_UNDEF_INT ? -1 : value;
}

/* For the log: whether calls block, and the settings that this version knows; -1: not set. */
static const char *asked_text(const ncclConfig_t *config, bool blocking, char *text, size_t cap) {
    const ncclConfig_t unset = NCCL_CONFIG_INITIALIZER;
    const ncclConfig_t *c = config != NULL ? config : &unset;
    const int known = (int)c->version < dn_version() ? (int)c->version : dn_version();
    const bool names = known >= 22700;
    snprintf(
        text, cap,
        "blocking %d, CTAs %d to %d, name %s; policy %d, NVLS %d, traffic %d, share %d, net %s",
        blocking, or_unset(c->minCTAs), or_unset(c->maxCTAs),
        names && c->commName != NULL ? c->commName : "", names ? or_unset(c->CTAPolicy) : -1,
        names ? or_unset(c->nvlsCTAs) : -1, known >= 22600 ? or_unset(c->trafficClass) : -1,
        or_unset(c->splitShare), c->netName != NULL ? c->netName : "");
    return text;
}

static struct ncclComm *comm_new(int nranks, int rank, int32_t pid, uint64_t nonce) {
    struct ncclComm *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return NULL;
    }
    c->nranks = nranks;
    c->rank = rank;
    c->nonce = nonce;
    snprintf(c->name, sizeof c->name, "/dtr-fake-nccl-%d-%016llx", pid, (unsigned long long)nonce);
    pthread_mutex_init(&c->lock, NULL);
    dtr_fake_cuda_uuid(c->uuid);
    cudaGetDevice(&c->device);
    list_add(c);
    return c;
}

static void comm_free(struct ncclComm *c) {
    join_late(c);
    while (atomic_load(&c->unfinished) > 0 || atomic_load(&c->inside) > 0) {
        struct timespec t = { 0, 100000 };
        nanosleep(&t, NULL);
    }
    fake_after(&c->unfinished);
    fake_after(&c->inside);
    dn_detach(c);
    /* The thread that made it may just have let go of the lock, which nobody sees. */
    FAKE_TELL(IgnoreWritesBegin);
    pthread_mutex_destroy(&c->lock);
    free(c);
    FAKE_TELL(IgnoreWritesEnd);
}

static void *init_main(void *arg) {
    struct ncclComm *c = arg;
    if (dn_init_fails(c->rank)) {
        dn_set_error(c, "rank %d: injected failure of init", c->rank);
        dn_fail(c, ncclSystemError);
        return NULL;
    }
    for (unsigned turn = 0; dn_init_hangs(c->rank) && !dn_pause(c, turn); turn++) {
    }
    ncclResult_t r = dn_attach(c);
    if (r != ncclSuccess) {
        dn_fail(c, r);
    }
    return NULL;
}

/* In a group it waits for the group's end. A communicator that failed is the caller's to abort, who
 * may do that from another thread while a blocking call makes it. */
static ncclResult_t start_init(struct ncclComm *c, ncclComm_t *out, void *(*fn)(void *),
                               void *arg) {
    fake_before(c); /* another thread may end it while this one makes it */
    __atomic_store_n(out, c, __ATOMIC_RELEASE);
    atomic_store(&c->state, ncclInProgress);
    if (dn_in_group()) {
        return dn_group_add_thread(c, fn, arg);
    }
    if (!c->blocking) {
        return dn_run_late(c, fn, arg);
    }
    dn_inside(c, 1);
    fn(arg);
    int state = ncclInProgress;
    atomic_compare_exchange_strong(&c->state, &state, ncclSuccess);
    state = atomic_load(&c->state);
    dn_inside(c, -1);
    return (ncclResult_t)state;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    DN_ENTER("ncclCommInitRankConfig");
    identifier made;
    memcpy(&made, &id, sizeof made);
    bool good_config = config == NULL || config->magic == 0xcafebeef;
    if (comm == NULL || nranks < 1 || nranks > DN_MAX_RANKS || rank < 0 || rank >= nranks ||
        memcmp(made.magic, MAGIC, sizeof MAGIC) != 0 || !good_config) {
        dn_set_error(NULL, "ncclCommInitRankConfig: invalid argument, rank %d of %d", rank, nranks);
        return dn_group_failed(ncclInvalidArgument);
    }
    struct ncclComm *c = comm_new(nranks, rank, made.pid, made.nonce);
    if (c == NULL) {
        return dn_group_failed(ncclSystemError);
    }
    c->blocking = is_blocking(config, true);
    char asked[320];
    dtr_fake_cuda_log("ncclCommInitRankConfig", "rank %d of %d, %s", rank, nranks,
                      asked_text(config, c->blocking, asked, sizeof asked));
    return start_init(c, comm, init_main, c);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, nranks, id, rank, NULL);
}

/* ---- split ---- */

typedef struct split {
    struct ncclComm *parent, *child; /* child: NULL where this rank has no colour */
    int color, key;
    ncclComm_t *out;
} split;

/* All ranks of the parent come here; the child's facts follow from what they posted. */
static ncclResult_t split_from(const split *s) {
    struct ncclComm *p = s->parent, *c = s->child;
    dn_rank *r = p->shared->rank;
    r[p->rank].color = s->color;
    r[p->rank].key = s->key;
    if (!dn_control_barrier(p)) {
        return ncclSystemError;
    }
    p->splits++;
    if (c != NULL) {
        c->nranks = c->rank = 0;
        for (int i = 0; i < p->nranks; i++) {
            bool mine = r[i].color == s->color;
            c->nranks += mine;
            c->rank += mine && (r[i].key < s->key || (r[i].key == s->key && i < p->rank));
        }
        c->nonce =
            (p->nonce ^ (p->splits << 32) ^ (uint64_t)s->color) * UINT64_C(0xff51afd7ed558ccd);
        snprintf(c->name, sizeof c->name, "/dtr-fake-nccl-%d-%016llx", r[0].pid,
                 (unsigned long long)c->nonce);
    }
    if (!dn_control_barrier(p)) { /* nobody posts for the next split before all have read */
        return ncclSystemError;
    }
    if (c != NULL) {
        init_main(c);
    }
    return c != NULL ? (ncclResult_t)atomic_load(&c->state) : ncclSuccess;
}

/* As NCCL does it: the handle is written at the end, NULL too, also where the parent was aborted
 * meanwhile, and a child that has failed is the caller's to abort. */
static void *split_main(void *arg) {
    split s = *(split *)arg;
    free(arg);
    ncclResult_t r = split_from(&s);
    dtr_fake_cuda_delay();
    if (r != ncclSuccess) {
        dn_fail(s.parent, r);
        if (s.child != NULL) {
            dn_fail(s.child, r);
        }
    }
    fake_lock(&s.parent->lock);
    s.parent->child = NULL;
    fake_unlock(&s.parent->lock);
    if (s.child != NULL) { /* its end does not wait for this thread, which is the parent's */
        fake_before(&s.child->unfinished);
    }
    __atomic_store_n(s.out, s.child, __ATOMIC_RELEASE);
    dtr_fake_cuda_log("ncclCommSplit", "has written its handle");
    return NULL;
}

/* Whether it lies in a frame of this thread, which may be gone when it is written. */
static bool on_stack(const void *p) {
    pthread_attr_t a;
    void *at = NULL;
    size_t nbytes = 0;
    if (pthread_getattr_np(pthread_self(), &a) != 0) {
        return false;
    }
    (void)pthread_attr_getstack(&a, &at, &nbytes);
    pthread_attr_destroy(&a);
    return (const char *)p >= (char *)at && (const char *)p < (char *)at + nbytes;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                           ncclConfig_t *config) {
    DN_ENTER("ncclCommSplit");
    dn_since("ncclCommSplit", 21801);
    ncclResult_t r = dn_check_comm(comm, "ncclCommSplit");
    if (r != ncclSuccess) {
        return dn_group_failed(r);
    }
    if (newcomm == NULL || color < NCCL_SPLIT_NOCOLOR) {
        dn_set_error(comm, "ncclCommSplit: invalid colour %d", color);
        return dn_group_failed(ncclInvalidArgument);
    }
    bool blocking = is_blocking(config, comm->blocking);
    char asked[320];
    dtr_fake_cuda_log("ncclCommSplit", "rank %d colour %d key %d, %s", comm->rank, color, key,
                      asked_text(config, blocking, asked, sizeof asked));
    split *s = malloc(sizeof *s);
    struct ncclComm *c = color >= 0 ? comm_new(1, 0, 0, 0) : NULL;
    if (s == NULL || (color >= 0 && c == NULL)) {
        free(s);
        return dn_group_failed(ncclSystemError);
    }
    *newcomm = NULL;
    *s = (split){ comm, c, color, key, newcomm };
    if (c != NULL) {
        c->blocking = blocking;
    }
    if ((!comm->blocking || dn_in_group()) && on_stack(newcomm)) {
        dtr_fake_cuda_log("ncclCommSplit", "mistake: the handle's place is on the stack, and it is "
                                           "written late");
    }
    fake_lock(&comm->lock);
    comm->child = c;
    fake_unlock(&comm->lock);
    return dn_start(comm, split_main, s);
}

/* ---- end ---- */

void dn_graphs_end(const struct ncclComm *c) {
    const struct timespec t = { 0, 100000 };
    while (atomic_load(&c->graphs) > 0) {
        nanosleep(&t, NULL);
    }
}

static void *finalize_main(void *arg) {
    struct ncclComm *c = arg;
    for (unsigned turn = 0; atomic_load(&c->unfinished) > 0; turn++) {
        if (dn_pause(c, turn)) {
            return NULL;
        }
    }
    dn_graphs_end(c);
    dn_control_barrier(c);
    return NULL;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    DN_ENTER("ncclCommFinalize");
    ncclResult_t r = dn_check_comm(comm, "ncclCommFinalize");
    if (r != ncclSuccess) {
        return r;
    }
    if (comm->finalized) {
        dn_set_error(comm, "ncclCommFinalize: finalized before");
        return ncclInvalidArgument;
    }
    comm->finalized = true;
    if (!comm->blocking) {
        return dn_run_late(comm, finalize_main, comm);
    }
    dn_inside(comm, 1);
    finalize_main(comm);
    dn_inside(comm, -1);
    return ncclSuccess;
}

static ncclResult_t end(ncclComm_t comm, const char *function, bool abort_it) {
    if (comm == NULL) {
        return ncclSuccess;
    }
    if (!list_find(comm, true)) {
        fprintf(stderr, "fake nccl: %s with a communicator that is gone\n", function);
        return ncclInvalidArgument;
    }
    fake_after(comm);
    dn_notes_end(comm, function, abort_it);
    if (abort_it || atomic_load(&comm->state) != ncclSuccess) {
        dtr_fake_cuda_delay();
        atomic_store(&comm->aborted, 1);
        fake_lock(&comm->lock);
        if (comm->child != NULL) {
            atomic_store(&comm->child->aborted, 1);
        }
        fake_unlock(&comm->lock);
        join_late(comm); /* it may still be attaching */
        if (comm->shared != NULL) {
            atomic_store(&comm->shared->rank[comm->rank].left, 1);
        }
    }
    dn_graphs_end(comm);
    comm_free(comm);
    dtr_fake_cuda_log(function, "done");
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    DN_ENTER("ncclCommDestroy");
    return end(comm, "ncclCommDestroy", false);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    DN_ENTER("ncclCommAbort");
    if (dn_in_group() && dn_version() < 22200) {
        dtr_fake_cuda_log("ncclCommAbort", "mistake: in a group, which needs 2.22");
    }
    return end(comm, "ncclCommAbort", true);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    DN_ENTER("ncclCommGetAsyncError");
    ncclResult_t r = dn_check_live(comm, "ncclCommGetAsyncError");
    if (r == ncclSuccess && state != NULL) {
        *state = (ncclResult_t)atomic_load(&comm->state);
    }
    return r;
}

static ncclResult_t fact(ncclComm_t comm, const char *function, int value, int *out) {
    DN_ENTER(function);
    ncclResult_t r = out != NULL ? dn_check_comm(comm, function) : ncclInvalidArgument;
    if (r == ncclSuccess) {
        *out = value;
    }
    return r;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *count) {
    return fact(comm, "ncclCommCount", comm != NULL ? comm->nranks : 0, count);
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) {
    return fact(comm, "ncclCommUserRank", comm != NULL ? comm->rank : 0, rank);
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device) {
    return fact(comm, "ncclCommCuDevice", comm != NULL ? comm->device : 0, device);
}

/* ---- operations with a factor ---- */

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
    DN_ENTER("ncclRedOpCreatePreMulSum");
    ncclResult_t r = dn_check_comm(comm, "ncclRedOpCreatePreMulSum");
    size_t size = dn_type_size(type);
    if (r != ncclSuccess || op == NULL || scalar == NULL || size == 0) {
        return r != ncclSuccess ? r : ncclInvalidArgument;
    }
    dn_op made = { .kind = DN_PREMUL, .type = type };
    if (residence == ncclScalarDevice) {
        made.device = dtr_fake_cuda_host(scalar, size);
        if (made.device == NULL) {
            dn_set_error(comm, "ncclRedOpCreatePreMulSum: the factor is not memory of a device");
            return ncclInvalidArgument;
        }
    } else {
        memcpy(made.factor, scalar, size);
    }
    fake_lock(&comm->lock);
    int at = 0;
    while (at < DN_MAX_OPS && comm->op_used[at]) {
        at++;
    }
    if (at < DN_MAX_OPS) {
        comm->op_used[at] = true;
        comm->ops[at] = made;
        *op = (ncclRedOp_t)(ncclNumOps + at);
    }
    fake_unlock(&comm->lock);
    dtr_fake_cuda_log("ncclRedOpCreatePreMulSum", "type %d residence %d", (int)type,
                      (int)residence);
    return at < DN_MAX_OPS ? ncclSuccess : ncclInternalError;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    DN_ENTER("ncclRedOpDestroy");
    ncclResult_t r = dn_check_live(comm, "ncclRedOpDestroy");
    if (r != ncclSuccess) {
        return r;
    }
    int at = (int)op - ncclNumOps;
    fake_lock(&comm->lock);
    bool good = at >= 0 && at < DN_MAX_OPS && comm->op_used[at];
    if (good) {
        comm->op_used[at] = false;
    }
    fake_unlock(&comm->lock);
    return good ? ncclSuccess : ncclInvalidArgument;
}
