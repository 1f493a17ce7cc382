/* Optional functions of backends of the program's own: coalescing scopes and split (groups BKD2).
 */
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#include <dtr/backend.h>
#include <dtr/mpi.h>

#include "groups_common.h"

/* ---- a backend that multiplies by the group's size, and looks at what it is called for ---- */

enum { MOST = 8, LARGE = 40000 /* elements: such calls are not packed */ };

static struct {
    int created, splits, destroyed, begun, ended, starts, tests, cancelled, overlaps;
    bool in_scope, started_outside;
    dtr_backend_call left[MOST]; /* by calls of the scope to its end */
    int n_left;
    void *parent, *gone; /* what split was given, and destroy last */
    char name[64];
    int rank, size;
    dtr_status begin, end, split; /* what they return */
} seen;

static atomic_int in_split, hold;                              /* hold: nothing is over */
static int own_request, whole_request, states[MOST], n_states; /* a state is its group's size */

static dtr_status new_state(const dtr_backend_args *a, void **state) {
    snprintf(seen.name, sizeof seen.name, "%s", a->group_name);
    seen.rank = a->rank;
    seen.size = a->size;
    states[n_states] = a->size;
    *state = &states[n_states++];
    return DTR_OK;
}

static dtr_status create(const dtr_backend_args *a, void **state) {
    seen.created++;
    return new_state(a, state);
}

static dtr_status split(void *parent, const dtr_backend_args *a, void **state) {
    seen.splits++;
    seen.parent = parent;
    atomic_store(&in_split, 1);
    usleep(5000); /* the parent's works could be looked at */
    atomic_store(&in_split, 0);
    return seen.split < 0 ? seen.split : new_state(a, state);
}

static void destroy(void *state) {
    seen.destroyed++;
    seen.gone = state;
}

static void multiply(const dtr_backend_call *c, int by) {
    const int32_t *in = c->in.data;
    int32_t *out = c->out.data;
    for (size_t i = 0; i < c->in.count; i++) {
        out[i] = in[i] * by;
    }
}

/* MAX is asked after by itself, MIN fails. In a scope all others are left to its end. */
static dtr_status start(void *state, const dtr_backend_call *c, void **request) {
    const int *size = state;
    seen.starts++;
    seen.started_outside = seen.started_outside || !seen.in_scope;
    if (c->op == DTR_MIN) {
        return DTR_ERR_SYSTEM;
    }
    if (c->op == DTR_MAX) {
        multiply(c, *size);
        *request = &own_request;
    } else if (seen.in_scope) {
        seen.left[seen.n_left++] = *c;
    } else {
        multiply(c, *size);
    }
    return DTR_OK;
}

static dtr_status barrier(void *state, const dtr_backend_call *c, void **request) {
    (void)state;
    (void)c;
    (void)request;
    return DTR_OK;
}

static dtr_status coalesce_begin(void *state) {
    (void)state;
    seen.begun++;
    seen.in_scope = true;
    return seen.begin;
}

static dtr_status coalesce_end(void *state, void **request) {
    (void)state;
    seen.ended++;
    seen.in_scope = false;
    *request = seen.n_left > 0 ? &whole_request : NULL;
    return seen.end;
}

/* The results of a scope are there when it is over, not before. */
static dtr_status test(void *state, void *request, bool *done, int *source) {
    (void)source;
    seen.overlaps += atomic_load(&in_split);
    *done = ++seen.tests > 5 && atomic_load(&hold) == 0;
    for (int i = 0; i < seen.n_left && *done && request == &whole_request; i++) {
        multiply(&seen.left[i], *(const int *)state);
    }
    return DTR_OK;
}

static void cancel(void *state, void *request) {
    (void)state;
    seen.cancelled += request == &whole_request;
}

static dtr_backend_ops all_slots(void) {
    dtr_backend_ops o = DTR_BACKEND_OPS_INIT;
    o.create = create;
    o.destroy = destroy;
    o.test = test;
    o.cancel = cancel;
    o.allreduce = start;
    o.barrier = barrier;
    o.coalesce_begin = coalesce_begin;
    o.coalesce_end = coalesce_end;
    o.split = split;
    return o;
}

static dtr_world *world_with(const dtr_backend_ops *o, const char *name) {
    dtr_world *w = NULL;
    memset(&seen, 0, sizeof seen);
    n_states = 0;
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w), DTR_OK);
    TH_IS(dtr_backend_register(w, name, o, DTR_BACKEND_CPU), DTR_OK);
    return w;
}

static dtr_group *group_with(dtr_world *w, const char *backend) {
    dtr_group *g = NULL;
    dtr_group_options o = options(20, NULL);
    o.backend = backend;
    TH_IS(dtr_group_create(w, NULL, th_size(), &o, &g), DTR_OK);
    return g;
}

static void end_world(dtr_world *w, dtr_group *g) {
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}

/* ---- coalescing scopes ---- */

static int32_t x[3], y[3], large[LARGE];

static void call(dtr_group *g, int32_t *in, int32_t *out, size_t n, dtr_op op) {
    TH_IS(dtr_allreduce(g, dtr_cpu(in, n, DTR_I32), dtr_cpu(out, n, DTR_I32), op, NULL, NULL),
          DTR_OK);
}

/* Three small calls, of which the engine would pack two, and a large one. */
static dtr_status scope(dtr_group *g, dtr_op second, bool with_barrier) {
    dtr_work *work = NULL;
    const int starts = seen.starts;
    for (int i = 0; i < 3; i++) {
        x[i] = 10 + i;
        y[i] = -1;
    }
    large[0] = 7;
    large[LARGE - 1] = 8;
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    call(g, &x[0], &y[0], 1, DTR_SUM);
    call(g, &x[1], &y[1], 1, second);
    call(g, &x[2], &y[2], 1, DTR_SUM);
    call(g, large, large, LARGE, DTR_SUM);
    if (with_barrier) {
        TH_IS(dtr_barrier(g, NULL, NULL), DTR_OK);
    }
    TH_CHECK(seen.starts == starts, "%d calls began before the end of the scope",
             seen.starts - starts);
    th_barrier(); /* from here on the others may be notified of the failure of one */
    dtr_status s = dtr_coalesce_end(g, &work);
    if (s == DTR_OK) {
        s = dtr_work_wait(work, -1);
        TH_IS(dtr_work_release(work), DTR_OK);
    }
    return s;
}

static void check_results(void) {
    const int n = th_size();
    TH_CHECK(y[0] == 10 * n && y[1] == 11 * n && y[2] == 12 * n && large[0] == 7 * n &&
                 large[LARGE - 1] == 8 * n,
             "%d %d %d %d %d", y[0], y[1], y[2], large[0], large[LARGE - 1]);
}

START_TEST(BKD2_coalesced_calls_run_as_one) {
    dtr_backend_ops o = all_slots();
    dtr_world *w = world_with(&o, "slots");
    dtr_group *g = group_with(w, "slots");
    TH_IS(scope(g, DTR_MAX, false), DTR_OK);
    check_results();
    TH_CHECK(seen.begun == 1 && seen.ended == 1 && seen.starts == 4 && seen.n_left == 3 &&
                 !seen.started_outside,
             "begun %d, ended %d, %d started, %d left", seen.begun, seen.ended, seen.starts,
             seen.n_left);
    TH_CHECK(seen.tests > 5 && seen.cancelled == 0 && dtr_group_seq(g) == 1, "%d tests",
             seen.tests);
    seen.n_left = 0;
    TH_IS(scope(g, DTR_SUM, false), DTR_OK); /* again */
    check_results();
    TH_CHECK(seen.begun == 2 && seen.ended == 2 && dtr_group_seq(g) == 2, "begun %d", seen.begun);
    end_world(w, g);
}
END_TEST

/* An operation outside a scope is none of their business, nor is a scope with a barrier. */
START_TEST(BKD2_scope_with_a_barrier) {
    dtr_backend_ops o = all_slots();
    dtr_world *w = world_with(&o, "slots");
    dtr_group *g = group_with(w, "slots");
    TH_IS(scope(g, DTR_SUM, true), DTR_OK);
    check_results();
    call(g, &x[0], &y[0], 1, DTR_SUM);
    TH_CHECK(seen.begun == 0 && seen.ended == 0 && seen.starts == 3, "begun %d, %d started",
             seen.begun, seen.starts); /* a pack, the large one, the last one */
    end_world(w, g);
}
END_TEST

/* Also as a program has them that was compiled when the table ended before. */
START_TEST(BKD2_scope_without_slots) {
    dtr_backend_ops o = all_slots();
    o.struct_size = offsetof(dtr_backend_ops, coalesce_begin);
    dtr_world *w = world_with(&o, "older");
    dtr_group *g = group_with(w, "older"), *half = NULL;
    TH_IS(scope(g, DTR_SUM, false), DTR_OK);
    check_results();
    TH_CHECK(seen.begun == 0 && seen.ended == 0 && seen.starts == 2, "begun %d, %d started",
             seen.begun, seen.starts);
    TH_IS(dtr_group_split(g, th_rank() % 2, 0, NULL, &half), DTR_OK);
    TH_CHECK(seen.splits == 0 && seen.created == 2, "%d split", seen.splits);
    TH_IS(dtr_group_destroy(half), DTR_OK);
    end_world(w, g);
}
END_TEST

/* Whatever fails, the scope is ended once, and what that left is given up. */
START_TEST(BKD2_failed_scopes) {
    static const char *const names[] = { "in start", "in coalesce_begin", "in coalesce_end" };
    dtr_backend_ops o = all_slots();
    for (int i = 0; i < 3; i++) {
        dtr_world *w = world_with(&o, "slots");
        dtr_group *g = group_with(w, "slots");
        seen.begin = i == 1 ? DTR_ERR_NOMEM : DTR_OK;
        seen.end = i == 2 ? DTR_ERR_NOMEM : DTR_OK;
        dtr_status s = scope(g, i == 0 ? DTR_MIN : DTR_SUM, false);
        if (s != DTR_ERR_REMOTE) {
            TH_IS(s, i == 0 ? DTR_ERR_SYSTEM : DTR_ERR_NOMEM);
            TH_MESSAGE("backend slots failed");
            TH_MESSAGE(names[i]);
        }
        TH_CHECK(dtr_group_status(g) != DTR_OK, "%s: the group is whole", names[i]);
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_CHECK(seen.begun == 0 || (seen.begun == 1 && seen.ended == (i != 1)),
                 "%s: begun %d, ended %d", names[i], seen.begun, seen.ended);
        TH_CHECK(seen.begun == 0 || seen.cancelled == (i == 0), "%s: %d cancelled", names[i],
                 seen.cancelled);
        TH_CHECK(i != 0 || seen.begun == 0 || seen.starts == 2, "%d started", seen.starts);
        TH_IS(dtr_world_destroy(w), DTR_OK);
        TH_AGREE();
    }
}
END_TEST

START_TEST(BKD2_one_without_the_other) {
    dtr_backend_ops o = all_slots();
    dtr_world *w = world_with(&o, "slots");
    o.coalesce_end = NULL;
    TH_IS(dtr_backend_register(w, "half", &o, DTR_BACKEND_CPU), DTR_ERR_ARG);
    TH_MESSAGE("\"half\" has coalesce_begin without coalesce_end");
    o = all_slots();
    o.coalesce_begin = NULL;
    TH_IS(dtr_backend_register(w, "half", &o, DTR_BACKEND_CPU), DTR_ERR_ARG);
    TH_MESSAGE("\"half\" has coalesce_end without coalesce_begin");
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- split ---- */

static void check_split(const dtr_group *child, const char *how, int splits, void *parent) {
    TH_CHECK(seen.created == 1 && seen.splits == splits && seen.parent == parent,
             "%s: %d created, %d split", how, seen.created, seen.splits);
    TH_CHECK(strcmp(seen.name, dtr_group_name(child)) == 0 && seen.rank == dtr_group_rank(child) &&
                 seen.size == dtr_group_size(child),
             "%s: rank %d of %d of '%s'", how, seen.rank, seen.size, seen.name);
}

/* While an operation of the parent is under way, which nobody looks at meanwhile. */
START_TEST(BKD2_split_makes_the_state_from_the_parents) {
    dtr_backend_ops o = all_slots();
    dtr_world *w = world_with(&o, "slots");
    dtr_group *g = group_with(w, "slots"), *half = NULL, *again = NULL, *one = NULL;
    void *parent = &states[0];
    int index = -1;
    dtr_work *work = NULL;
    int32_t v = 5;
    atomic_store(&hold, 1);
    TH_IS(dtr_allreduce(g, dtr_cpu(&v, 1, DTR_I32), dtr_cpu(&v, 1, DTR_I32), DTR_MAX, NULL, &work),
          DTR_OK);
    TH_IS(dtr_group_split(g, th_rank() % 2, 0, NULL, &half), DTR_OK);
    atomic_store(&hold, 0);
    check_split(half, "split", 1, parent);
    TH_IS(dtr_work_wait(work, -1), DTR_OK);
    TH_IS(dtr_work_release(work), DTR_OK);
    TH_CHECK(seen.overlaps == 0, "%d looks while the parent was split", seen.overlaps);
    call(half, &x[0], &y[0], 0, DTR_SUM);
    TH_IS(dtr_group_split(half, 0, 0, NULL, &again), DTR_OK);
    check_split(again, "split of a part", 2, &states[1]);
    TH_IS(dtr_group_subgroups(g, 1, NULL, &one, &index), DTR_OK);
    check_split(one, "subgroups", 3, parent);
    TH_IS(dtr_group_destroy(one), DTR_OK);
    TH_CHECK(seen.gone == &states[3], "another state was destroyed");
    TH_IS(dtr_group_destroy(again), DTR_OK);
    TH_IS(dtr_group_destroy(half), DTR_OK);
    TH_CHECK(seen.gone == &states[1] && seen.destroyed == 3, "%d destroyed", seen.destroyed);
    end_world(w, g);
}
END_TEST

/* Other groups, and those that another backend serves, have no parent for it. */
START_TEST(BKD2_create_makes_all_others) {
    dtr_backend_ops o = all_slots();
    dtr_world *w = world_with(&o, "slots");
    TH_IS(dtr_backend_register(w, "other", &o, DTR_BACKEND_CPU), DTR_OK);
    dtr_group *g = group_with(w, "slots"), *h = group_with(w, "slots"), *part = NULL;
    dtr_group_options other = options(20, NULL);
    other.backend = "other";
    TH_IS(dtr_group_split(g, 0, 0, &other, &part), DTR_OK);
    TH_CHECK(seen.created == 3 && seen.splits == 0, "%d created, %d split", seen.created,
             seen.splits);
    TH_IS(dtr_group_destroy(part), DTR_OK);
    TH_IS(dtr_group_split(g, th_rank() == 0 ? 0 : DTR_COLOR_NONE, 0, NULL, &part), DTR_OK);
    TH_CHECK(seen.splits == (th_rank() == 0) && seen.created == 3, "%d split", seen.splits);
    TH_IS(dtr_group_destroy(part), DTR_OK);
    TH_IS(dtr_group_destroy(h), DTR_OK);
    end_world(w, g);
}
END_TEST

START_TEST(BKD2_split_fails_on_one_rank) {
    dtr_backend_ops o = all_slots();
    dtr_world *w = world_with(&o, "slots");
    dtr_group *g = group_with(w, "slots"), *part = UNTOUCHED;
    const bool last = th_rank() == th_size() - 1;
    seen.split = last ? DTR_ERR_NOMEM : DTR_OK;
    TH_IS(dtr_group_split(g, 0, 0, NULL, &part), last ? DTR_ERR_NOMEM : DTR_ERR_REMOTE);
    TH_MESSAGE("DTR_ERR_NOMEM");
    TH_CHECK(part == UNTOUCHED && dtr_group_status(g) == DTR_OK, "something is left");
    TH_CHECK(seen.destroyed == !last, "%d destroyed", seen.destroyed);
    call(g, &x[0], &y[0], 1, DTR_SUM);
    end_world(w, g);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "groups_slots", 60);
    th_add(tc, BKD2_coalesced_calls_run_as_one, 1, 0);
    th_add(tc, BKD2_scope_with_a_barrier, 1, 0);
    th_add(tc, BKD2_scope_without_slots, 1, 0);
    th_add(tc, BKD2_failed_scopes, 1, 0);
    th_add(tc, BKD2_one_without_the_other, 1, 0);
    th_add(tc, BKD2_split_makes_the_state_from_the_parents, 1, 0);
    th_add(tc, BKD2_create_makes_all_others, 1, 0);
    th_add(tc, BKD2_split_fails_on_one_rank, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "groups_slots", make);
}
