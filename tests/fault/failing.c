/* Faults of one rank's own: no memory before and after an operation has its number, and MPI calls
 * that fail (reliability: EA1, EA2, FI18, FI19, FI29, M8, M9). Memory fails in the thread of the
 * caller, allocation by allocation, so that every place is met that can find none. */
#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/ddp_internal.h"
#include "table.h"

/* ---- what fails: linked with --wrap, and MPI_Isend in front of MPI's own ---- */

static _Thread_local int allocations_left; /* until one fails; 0: none does */
static _Thread_local bool fired;
static _Atomic bool send_fails; /* the next one, of any thread */

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__wrap_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
int __real_posix_memalign(void **p, size_t align, size_t n);
int __wrap_posix_memalign(void **p, size_t align, size_t n);

static bool fails_now(void) {
    if (allocations_left == 0 || --allocations_left > 0) {
        return false;
    }
    return fired = true;
}

void *__wrap_malloc(size_t n) {
    return fails_now() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t each) {
    return fails_now() ? NULL : __real_calloc(n, each);
}

void *__wrap_realloc(void *p, size_t n) {
    return fails_now() ? NULL : __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n) {
    return fails_now() ? NULL : __real_aligned_alloc(align, n);
}

int __wrap_posix_memalign(void **p, size_t align, size_t n) {
    return fails_now() ? 12 /* ENOMEM */ : __real_posix_memalign(p, align, n);
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    return atomic_exchange(&send_fails, false)
               ? MPI_ERR_OTHER
               : PMPI_Isend(data, count, type, to, tag, comm, request);
}

static bool is_victim(void) {
    return th_rank() == 1;
}

static bool on_any(bool mine) {
    int in = mine, any = 0;
    MPI_Allreduce(&in, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return any != 0;
}

/* ---- FI18, FI29 ---- */

static int n_retried, n_broken;

/* One call in which the victim's n-th allocation fails; false: it needs fewer. */
static bool without_memory(spot *s, int n) {
    call c = table_call(s);
    allocations_left = is_victim() ? n : 0;
    fired = false;
    dtr_status e = table_do(s, &c);
    allocations_left = 0;
    /* A module's ranks agree on it at the end of the step, so that nobody waits for a retry. */
    if (is_victim() && e == DTR_ERR_NOMEM && s->way != BACKWARD &&
        dtr_group_status(s->group) == DTR_OK) {
        TABLE_WORDS(s, "memory");
        n_retried++;
        e = table_do(s, &c); /* nothing had happened: the others wait */
    }
    const dtr_status want = is_victim() ? DTR_ERR_NOMEM : DTR_ERR_REMOTE;
    if (on_any(e != DTR_OK)) {
        n_broken++;
        TABLE_IS(s, e, want);
        TABLE_WORDS(s, "memory", is_victim() ? "" : "rank 1");
        TABLE_IS(s, dtr_group_status(s->group), s->way == BACKWARD ? DTR_OK : want);
    }
    return on_any(fired);
}

static void each_allocation(spot *s) {
    enum { MOST = 60 };
    bool more = true;
    for (int n = 1; more && n < MOST; n++) {
        more = without_memory(s, n);
        table_close(s);
        table_open(s);
    }
}

START_TEST(FI18_FI29_no_memory) {
    dtr_world *w = table_world("off");
    n_retried = n_broken = 0;
    table_each(w, BACKWARD, each_allocation);
    TH_ALL(on_any(n_retried > 0), "no call was made again");
    TH_ALL(n_broken > 0, "no group broke");
    table_end(w);
}
END_TEST

/* ---- FI29 in a backward pass, where a bucket cannot be launched ---- */

enum { PARAMS = 3 };

static dtr_ddp *new_module(dtr_group *g, dtr_tensor **value) {
    dtr_param p[PARAMS] = { { .name = "a" }, { .name = "b" }, { .name = "c" } };
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_ddp *ddp = NULL;
    o.bucket_cap_bytes = 1; /* a bucket for each */
    for (int i = 0; i < PARAMS; i++) {
        TH_IS(dtr_tensor_empty(g->world, DTR_F32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1,
                               (const int64_t[]){ 1000 }, &value[i]),
              DTR_OK);
        TH_IS(dtr_tensor_fill(value[i], 0, NULL), DTR_OK);
        p[i].value = value[i];
    }
    TH_IS(dtr_ddp_create(g, p, PARAMS, &o, &ddp), DTR_OK);
    TH_AGREE();
    return ddp;
}

/* A backward pass in which the victim's n-th allocation before its end fails. Where that breaks the
 * group the victim comes to the end after all others have come out of it. */
static dtr_status backward_without_memory(dtr_ddp *ddp, int n, bool *broken) {
    allocations_left = is_victim() ? n : 0;
    fired = false;
    for (size_t i = PARAMS; i-- > 0;) {
        (void)dtr_ddp_grad_ready(ddp, i, NULL); /* its error is agreed on at the end */
    }
    allocations_left = 0;
    *broken = is_victim() && dtr_group_status(ddp->group) < 0;
    if (*broken) {
        MPI_Barrier(MPI_COMM_WORLD);
    }
    dtr_status s = dtr_ddp_backward_end(ddp, NULL);
    if (!*broken) {
        MPI_Barrier(MPI_COMM_WORLD);
    }
    *broken = on_any(*broken);
    return s;
}

START_TEST(FI29_no_memory_to_launch) {
    dtr_world *w = table_world("off");
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    bool more = true, broken = false;
    o.timeout_s = 600;
    n_broken = 0;
    for (int n = 0; more; n++) {
        dtr_group *g = NULL;
        dtr_tensor *value[PARAMS] = { NULL };
        TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, &o, &g));
        dtr_ddp *ddp = new_module(g, value);
        dtr_status s = backward_without_memory(ddp, n, &broken);
        if (broken) {
            n_broken++;
            TH_IS(s, is_victim() ? DTR_ERR_NOMEM : DTR_ERR_REMOTE);
            TH_MESSAGE("memory");
            TH_MESSAGE(is_victim() ? "" : "rank 1");
        }
        more = on_any(fired) || n == 0;
        TH_IS(dtr_ddp_destroy(ddp), DTR_OK);
        for (int i = 0; i < PARAMS; i++) {
            dtr_tensor_release(value[i]);
        }
        th_good_allreduce(g); /* the module has a group of its own */
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_AGREE();
    }
    TH_ALL(n_broken > 0, "every bucket could be launched");
    table_end(w);
}
END_TEST

/* ---- FI29 while the ranks agree on another error ---- */

/* The victim reports one gradient too few, and its n-th allocation in the end of the backward pass
 * fails: the step is bad for all, and the module goes on on all ranks or on none. */
static dtr_status missing_without_memory(dtr_ddp *ddp, int n) {
    for (size_t i = PARAMS; i-- > 0;) {
        if (i > 0 || !is_victim()) {
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
    }
    allocations_left = is_victim() ? n : 0;
    fired = false;
    dtr_status s = dtr_ddp_backward_end(ddp, NULL);
    allocations_left = 0;
    return s;
}

START_TEST(FI29_no_memory_to_agree) {
    dtr_world *w = table_world("off");
    dtr_group *g = NULL;
    bool more = true;
    TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g));
    for (int n = 1; more; n++) {
        dtr_tensor *value[PARAMS] = { NULL };
        dtr_ddp *ddp = new_module(g, value);
        dtr_status s = missing_without_memory(ddp, n);
        const bool failed = atomic_load(&ddp->state) == DTR__DDP_FAILED, any = on_any(failed);
        TH_CHECK(s < 0, "%s", dtr_status_name(s));
        TH_CHECK(failed == any, "allocation %d: the module goes on here only", n);
        more = on_any(fired);
        TH_IS(dtr_ddp_destroy(ddp), DTR_OK);
        for (int i = 0; i < PARAMS; i++) {
            dtr_tensor_release(value[i]);
        }
        TH_AGREE();
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    table_end(w);
}
END_TEST

/* ---- FI19 ---- */

static void send_that_fails(spot *s) {
    call c = table_call(s);
    if (strcmp(s->backend, "cpu:mpi") != 0) {
        return; /* the others need not send anything */
    }
    atomic_store(&send_fails, is_victim());
    dtr_status e = table_do(s, &c);
    TABLE_IS(s, e, is_victim() ? DTR_ERR_MPI : DTR_ERR_REMOTE);
    TABLE_WORDS(s, "MPI_Isend");
    dtr_error why = DTR_ERROR_INIT;
    dtr_last_error(&why);
    if (s->way == BACKWARD) { /* the module tells its ranks in words, and the code (EA7) */
        TABLE_WORDS(s, "rank 1: MPI_Isend failed: ");
    } else if (!is_victim()) {
        TABLE_WORDS(s, "rank 1", "DTR_ERR_MPI");
    }
    if (s->way == BACKWARD || is_victim()) {
        TH_CHECK(why.native == DTR_NATIVE_MPI && why.native_code == MPI_ERR_OTHER &&
                     why.native_text[0] != '\0',
                 "%s: native %d, code %d, '%s'", s->what, (int)why.native, why.native_code,
                 why.native_text);
    }
    atomic_store(&send_fails, false);
}

START_TEST(FI19_an_MPI_call_fails) {
    dtr_world *w = table_world("off");
    table_each(w, BACKWARD, send_that_fails);
    table_end(w);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "failing", 110);
    th_add(tc, FI18_FI29_no_memory, 2, 0);
    th_add(tc, FI29_no_memory_to_launch, 2, 0);
    th_add(tc, FI29_no_memory_to_agree, 2, 0);
    th_add(tc, FI19_an_MPI_call_fails, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "fault_failing", make);
}
