/* Operators of the program: what dtr_op_create and dtr_op_free refuse, operators in use, calls out
 * of one, ranks that mean different ones, and backends that have none. */
#include <stdatomic.h>
#include <stdlib.h>

#include <dtr/backend.h>
#include <dtr/mpi.h>

#include "core/team.h"
#include "recorder/recording.h"
#include "user_ops.h"

enum { MANY = 8, OP_LIMIT = 64 }; /* ranks; operators of a process */

START_TEST(arguments) {
    dtr_op op = DTR_MAX, other = DTR_MAX, more[OP_LIMIT];
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    uint32_t x = 12, y = 5;
    dtr_buffer in = dtr_cpu(&x, 1, DTR_U32), out = dtr_cpu(&y, 1, DTR_U32);
    o.keep_mpi = true;
    TH_OK(dtr_world_create(&o, &w));
    TH_IS(dtr_op_create(th_world(), NULL, NULL, false, &op), DTR_ERR_ARG);
    TH_MESSAGE("fn is NULL");
    TH_IS(dtr_op_create(th_world(), gcd_of, NULL, false, NULL), DTR_ERR_ARG);
    TH_MESSAGE("op is NULL");
    TH_CHECK(op == DTR_MAX, "a refused call wrote");
    for (int i = 0; i < 2 * th_rank(); i++) { /* other places in every process */
        more[i] = op_of(w, &sorts[GCD]);
    }
    op = op_of(th_world(), &sorts[GCD]);
    other = op_of(w, &sorts[GCD]);
    for (int d = 0; d < TH_DTYPES; d++) {
        TH_CHECK(dtr_op_supports(op, th_all_dtypes[d]), "%s", dtr_dtype_name(th_all_dtypes[d]));
    }
    TH_CHECK(!dtr_op_supports(op, (dtr_dtype)99) && !dtr_op_supports(DTR_USER_OP, DTR_U8), "?");
    TH_IS(dtr_op_free(th_world(), DTR_MIN), DTR_ERR_ARG);
    TH_MESSAGE("min");
    TH_IS(dtr_op_free(th_world(), other), DTR_ERR_ARG);
    TH_MESSAGE("another world");
    TH_IS(dtr_allreduce(th_group(), in, out, other, NULL, NULL), DTR_ERR_ARG);
    TH_MESSAGE("another world");
    TH_IS(dtr_allreduce(th_group(), in, out, DTR_USER_OP, NULL, NULL), DTR_ERR_ARG);
    TH_IS(dtr_allreduce(th_group(), in, out, (dtr_op)(op + 1), NULL, NULL), DTR_ERR_ARG);
    TH_MESSAGE("none of dtr_op_create");
    TH_CHECK(y == 5, "a refused call wrote");
    TH_IS(dtr_allreduce(th_group(), in, out, op, NULL, NULL), DTR_OK);
    TH_CHECK(y == 12, "divisor %u", y);
    TH_AGREE();
    TH_OK(dtr_world_destroy(w)); /* and what it has made */
    for (int i = 0; i + 1 < OP_LIMIT; i++) {
        more[i] = op_of(th_world(), &sorts[GCD]);
    }
    other = DTR_MIN;
    TH_IS(dtr_op_create(th_world(), gcd_of, NULL, true, &other), DTR_ERR_NOMEM);
    TH_CHECK(other == DTR_MIN, "a refused call wrote");
    for (int i = 0; i + 1 < OP_LIMIT; i++) {
        TH_IS(dtr_op_free(th_world(), more[i]), DTR_OK);
    }
    TH_IS(dtr_op_free(th_world(), op), DTR_OK);
    TH_IS(dtr_op_free(th_world(), op), DTR_ERR_ARG);
    TH_MESSAGE("has been freed");
    TH_AGREE();
}
END_TEST

/* A call that comes again knows an operator that has been freed, and its successor. */
START_TEST(freed_and_made_again) {
    uint32_t x = 6 + 6 * (uint32_t)th_rank(), y = 0;
    dtr_op op = op_of(th_world(), &sorts[GCD]), first = op;
    for (int i = 0; i < 8; i++) {
        if (i == 4) {
            TH_IS(dtr_op_free(th_world(), op), DTR_OK);
        }
        y = 0;
        TH_IS(dtr_allreduce(th_group(), dtr_cpu(&x, 1, DTR_U32), dtr_cpu(&y, 1, DTR_U32), op, NULL,
                            NULL),
              i == 4 ? DTR_ERR_ARG : DTR_OK);
        TH_CHECK(y == (i == 4 ? 0 : 6), "call %d gave %u", i, y);
        if (i == 4) {
            TH_MESSAGE("freed");
            op = op_of(th_world(), &sorts[GCD]);
            TH_CHECK(op != first, "a handle came again");
        }
    }
    TH_OK(dtr_op_free(th_world(), op));
}
END_TEST

/* It stays while an operation, or a scope that is being recorded, uses it. */
START_TEST(freed_in_use) {
    dtr_op op = op_of(th_world(), &sorts[GCD]);
    const bool late = th_rank() == th_size() - 1;
    uint32_t x = 6 + 6 * (uint32_t)th_rank(), y[2] = { 0 };
    dtr_buffer in = dtr_cpu(&x, 1, DTR_U32);
    for (int i = 0; i < 2; i++) {
        dtr_work *w = NULL;
        if (i == 1) {
            TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
        }
        if (!late) {
            TH_IS(dtr_allreduce(th_group(), in, dtr_cpu(y, 1, DTR_U32), op, NULL, &w), DTR_OK);
            TH_IS(dtr_op_free(th_world(), op), DTR_ERR_STATE);
            TH_MESSAGE("unfinished");
        }
        th_barrier();
        if (late) {
            TH_IS(dtr_allreduce(th_group(), in, dtr_cpu(y, 1, DTR_U32), op, NULL, &w), DTR_OK);
        }
        if (i == 1) {
            TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
        }
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        TH_CHECK(y[0] == 6, "divisor %u", y[0]);
        TH_IS(dtr_op_free(th_world(), op), DTR_OK); /* though the work is still held */
        op = op_of(th_world(), &sorts[GCD]);
        TH_IS(dtr_work_release(w), DTR_OK);
        TH_AGREE();
    }
    TH_OK(dtr_op_free(th_world(), op));
}
END_TEST

/* A work that a failure has ended gives it back, too. */
START_TEST(freed_after_a_failure) {
    dtr_op op = op_of(th_world(), &sorts[GCD]);
    dtr_group *g = NULL;
    dtr_work *w = NULL;
    uint32_t x = 6, y = 0;
    TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g));
    if (th_rank() != 0) {
        TH_IS(dtr_allreduce(g, dtr_cpu(&x, 1, DTR_U32), dtr_cpu(&y, 1, DTR_U32), op, NULL, &w),
              DTR_OK);
    }
    th_barrier();
    TH_IS(dtr_group_abort(g, "a test"), DTR_OK);
    if (w != NULL) {
        TH_CHECK(dtr_work_wait(w, -1) < 0, "it did not fail");
    }
    TH_IS(dtr_op_free(th_world(), op), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
    (void)dtr_group_destroy(g);
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

/* Recordings know it by its number. */
START_TEST(recorded) {
    uint32_t x = 6, y = 0;
    char title[256], why[160];
    dtr_op op = op_of(th_world(), &sorts[GCD]);
    TH_OK(dtr_allreduce(th_group(), dtr_cpu(&x, 1, DTR_U32), dtr_cpu(&y, 1, DTR_U32), op, NULL,
                        NULL));
    const dtr__rec_memory *m = dtr__recorder_memory(th_world());
    dtr__recording *r = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
    TH_ALL(r != NULL, "%s", why);
    const dtr__record *last = dtr__recording_last(r, true);
    TH_CHECK(last != NULL &&
                 strstr(dtr__recording_title(r, last, title, sizeof title), "u32 x 1 user op ") !=
                     NULL &&
                 strstr(title, " (commutes) ") != NULL,
             "title %s", last != NULL ? title : "");
    dtr__recording_free(r);
    TH_OK(dtr_op_free(th_world(), op));
}
END_TEST

/* ---- from inside ---- */

static dtr_op op_inside;
static _Atomic int blocked, freed, calls;

static void call_out(void *inout, const void *in, size_t count, dtr_dtype d, void *arg) {
    uint32_t x = 1;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_U32);
    (void)d;
    (void)arg;
    calls++;
    blocked += dtr_allreduce(th_group(), b, b, DTR_SUM, NULL, NULL) == DTR_ERR_STATE;
    freed += dtr_op_free(th_world(), op_inside) == DTR_ERR_STATE;
    for (size_t k = 0; k < count; k++) {
        ((uint32_t *)inout)[k] |= ((const uint32_t *)in)[k];
    }
}

START_TEST(calls_from_inside) {
    uint32_t x = UINT32_C(1) << th_rank(), y = 0;
    TH_OK(dtr_op_create(th_world(), call_out, NULL, false, &op_inside));
    calls = blocked = freed = 0;
    for (int i = 0; i < 4; i++) {
        TH_IS(dtr_allreduce(th_group(), dtr_cpu(&x, 1, DTR_U32), dtr_cpu(&y, 1, DTR_U32), op_inside,
                            NULL, NULL),
              DTR_OK);
        TH_CHECK(y == (UINT32_C(1) << th_size()) - 1, "bits %x", (unsigned)y);
    }
    uint64_t all[64], called = 0;
    th_gather_u64((uint64_t)calls, all);
    for (int i = 0; i < th_size(); i++) {
        called += all[i];
    }
    /* Over nodes not every rank applies it. */
    const bool enough = dtr_world_node_count(th_world()) > 1 ? called > 0 : calls > 0;
    TH_CHECK(enough && blocked == calls && freed == calls, "of %d calls %d and %d were refused",
             calls, blocked, freed);
    TH_OK(dtr_op_free(th_world(), op_inside));
}
END_TEST

/* ---- ranks that disagree, and backends that have none ---- */

static void disagree(dtr_op op, const char *one, const char *two) {
    uint32_t x = 6, y = 0;
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g));
    dtr_status s =
        dtr_allreduce(g, dtr_cpu(&x, 1, DTR_U32), dtr_cpu(&y, 1, DTR_U32), op, NULL, NULL);
    TH_CHECK(s == DTR_ERR_MISMATCH, "status %s", dtr_status_name(s));
    TH_MESSAGE(one);
    TH_MESSAGE(two);
    TH_MESSAGE("disagree on the op");
    TH_AGREE();
    (void)dtr_group_destroy(g);
}

START_TEST(different_operators) {
    dtr_op mine = op_of(th_world(), &sorts[GCD]), next = op_of(th_world(), &sorts[GCD]);
    disagree(th_rank() == 1 ? next : mine, "user op ", " (commutes)");
    disagree(th_rank() == 1 ? DTR_MAX : mine, "user op ", "max");
    dtr_op other = DTR_SUM;
    TH_IS(dtr_op_create(th_world(), gcd_of, &mark, th_rank() != 1, &other), DTR_OK);
    disagree(other, "user op ", " (commutes)");
    TH_OK(dtr_op_free(th_world(), mine));
    TH_OK(dtr_op_free(th_world(), next));
    TH_OK(dtr_op_free(th_world(), other));
}
END_TEST

static dtr_status toy_create(const dtr_backend_args *args, void **state) {
    (void)args;
    *state = &mark;
    return DTR_OK;
}

static dtr_status toy_allreduce(void *state, const dtr_backend_call *c, void **request) {
    (void)state;
    (void)c;
    *request = NULL;
    return DTR_OK;
}

START_TEST(backend_of_the_program) {
    dtr_backend_ops ops = DTR_BACKEND_OPS_INIT;
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_op op = op_of(th_world(), &sorts[GCD]);
    dtr_group *g = NULL;
    uint32_t x = 6, y = 0;
    ops.create = toy_create;
    ops.allreduce = toy_allreduce;
    o.backend = "cpu:own";
    TH_OK(dtr_backend_register(th_world(), "own", &ops, DTR_BACKEND_CPU));
    TH_OK(dtr_group_split(th_group(), 0, 0, &o, &g));
    dtr_buffer in = dtr_cpu(&x, 1, DTR_U32), out = dtr_cpu(&y, 1, DTR_U32);
    TH_IS(dtr_allreduce(g, in, out, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_allreduce(g, in, out, op, NULL, NULL), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("operators of the program");
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
    TH_OK(dtr_op_free(th_world(), op));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "user_op_rules", 120);
    th_add(tc, arguments, 0, MANY);
    th_add(tc, freed_and_made_again, 0, 0);
    th_add(tc, freed_in_use, 2, 0);
    th_add(tc, freed_after_a_failure, 2, 0);
    th_add(tc, recorded, 0, 0);
    th_add(tc, calls_from_inside, 2, 0);
    const char *level = getenv("DTR_DEBUG");
    if ((getenv("DTR_NODE_RANKS") == NULL && getenv("DTR_BACKEND") == NULL) ||
        (level != NULL && strcmp(level, "detail") == 0)) {
        th_add(tc, different_operators, 2, 0);
    } else {
        th_skip("different_operators", "messages compare no calls");
    }
    th_add(tc, backend_of_the_program, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "user_op_rules", make);
}
