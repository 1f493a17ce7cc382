#include "table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = TH_SANITIZED ? 40000 : 300000 };

static const char *const way_names[WAYS] = { "blocking", "asynchronous", "in a scope",
                                             "in a backward pass" };

dtr_world *table_world(const char *debug) {
    dtr_world *w = NULL;
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.keep_mpi = true;
    setenv("DTR_DEBUG", debug, 1);
    TH_OK(dtr_world_create(&o, &w));
    unsetenv("DTR_DEBUG");
    return w;
}

void table_end(dtr_world *w) {
    th_good_allreduce(dtr_world_group(w));
    TH_OK(dtr_world_destroy(w));
}

call table_call(const spot *s) {
    return (call){ .kind = ALLREDUCE, .count = s->count, .dtype = DTR_F32, .op = DTR_SUM };
}

/* ---- calling ---- */

dtr_status table_issue(dtr_group *g, const call *c, void *mem, dtr_work **work) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.label = "grad.3";
    o.timeout_s = c->limit_s;
    dtr_buffer b = dtr_cpu(mem, c->count, c->dtype);
    switch (c->kind) {
    case BROADCAST:
        return dtr_broadcast(g, b, c->root, &o, work);
    case REDUCE:
        return dtr_reduce(g, b, b, c->op, c->root, &o, work);
    default:
        return dtr_allreduce(g, b, b, c->op, &o, work);
    }
}

static dtr_status hook(void *state, dtr_ddp_bucket *bucket, dtr_work **work) {
    spot *s = state;
    dtr_group *g = dtr_ddp_bucket_group(bucket);
    return s->inside != NULL ? s->inside(s, g, work)
                             : table_issue(g, s->now, dtr_ddp_bucket_buffer(bucket).data, work);
}

static dtr_status in_a_scope(const spot *s, const call *c) {
    static float small[4];
    dtr_work *work = NULL;
    dtr_buffer b = dtr_cpu(small, 4, DTR_F32);
    dtr_status e = dtr_coalesce_begin(s->group);
    if (e != DTR_OK) {
        return e;
    }
    e = dtr_allreduce(s->group, b, b, DTR_SUM, NULL, NULL);
    e = e == DTR_OK ? table_issue(s->group, c, s->spare, NULL) : e;
    dtr_status ended = dtr_coalesce_end(s->group, &work); /* gives the first error again */
    e = e == DTR_OK ? ended : e;
    e = e == DTR_OK ? dtr_work_wait(work, c->limit_s > 0 ? c->limit_s : -1) : e;
    dtr_work_release(work);
    return e;
}

static dtr_status in_its_way(spot *s, const call *c) {
    dtr_work *work = NULL;
    dtr_status e;
    switch (s->way) {
    case BLOCKING:
        return table_issue(s->group, c, s->spare, NULL);
    case ASYNC:
        e = table_issue(s->group, c, s->spare, &work);
        e = e == DTR_OK ? dtr_work_wait(work, -1) : e;
        dtr_work_release(work);
        return e;
    case SCOPE:
        return in_a_scope(s, c);
    default:
        (void)dtr_ddp_grad_ready(s->ddp, 0, NULL); /* its error is agreed on at the end */
        return dtr_ddp_backward_end(s->ddp, NULL);
    }
}

dtr_status table_do(spot *s, const call *c) {
    const th_start since = th_begin();
    s->now = c;
    dtr_status e = in_its_way(s, c);
    table_in_time(s, since, c->limit_s);
    return e;
}

void table_in_time(const spot *s, th_start since, double limit_s) {
    const double prompt = 3, own = limit_s < 600 ? limit_s : 0;
    TH_CHECK(th_in_time(since, own + prompt), "%s: a call took %.1f s", s->what,
             th_now() - since.at);
}

void table_words(const spot *s, const char *const *words) {
    const char *text = dtr_last_error_message();
    for (; *words != NULL; words++) {
        TH_CHECK(strstr(text, *words) != NULL, "%s: no \"%s\" in: %s", s->what, *words, text);
    }
}

/* ---- combinations ---- */

static void open_module(spot *s) {
    int64_t shape = (int64_t)s->count;
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    TH_IS(dtr_tensor_empty(s->world, DTR_F32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1,
                           &shape, &s->value),
          DTR_OK);
    TH_IS(dtr_tensor_fill(s->value, 0, NULL), DTR_OK);
    dtr_param p = { .name = "w", .value = s->value };
    TH_IS(dtr_ddp_create(s->group, &p, 1, &o, &s->ddp), DTR_OK);
    TH_IS(dtr_ddp_register_hook(s->ddp, hook, s, NULL), DTR_OK);
    TH_AGREE();
    const call good = table_call(s); /* the first step compares hooks and rebuilds the plan */
    TH_IS(table_do(s, &good), DTR_OK);
    TH_AGREE();
}

void table_open(spot *s) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.backend = s->backend;
    o.timeout_s = 600;
    TH_OK(dtr_group_split(dtr_world_group(s->world), 0, 0, &o, &s->group));
    th_good_allreduce(s->group);
    if (s->way == BACKWARD) {
        open_module(s);
    }
}

void table_close(spot *s) {
    TH_IS(dtr_ddp_destroy(s->ddp), DTR_OK);
    dtr_tensor_release(s->value);
    TH_IS(dtr_group_destroy(s->group), DTR_OK);
    s->ddp = NULL;
    s->value = NULL;
    s->inside = NULL;
    TH_AGREE();
}

static void run(dtr_world *w, const char *backend, way from, bool large, void (*fault)(spot *)) {
    spot s = { .backend = backend, .way = from, .world = w };
    s.count = large ? LARGE : 8;
    snprintf(s.what, sizeof s.what, "%s, %s, %zu elements", backend, way_names[from], s.count);
    /* MPI may keep hold of what a failed operation was given (EA9). */
    static unsigned char spare[(LARGE + 16) * 8];
    s.spare = memset(spare, 0, sizeof spare);
    table_open(&s);
    th_barrier(); /* nobody is late into the fault */
    fault(&s);
    TH_AGREE();
    table_close(&s);
    th_good_allreduce(dtr_world_group(w));
}

void table_each(dtr_world *w, way last, void (*fault)(spot *s)) {
    const char *one[] = { "cpu:shm", "cpu:mpi" }, *several[] = { "cpu:auto", "cpu:mpi" };
    const char *const *backends = dtr_world_node_count(w) > 1 ? several : one;
    for (int b = 0; b < 2; b++) {
        for (int i = 0; i <= (int)last; i++) {
            run(w, backends[b], (way)i, (b + i) % 2 == 1, fault);
        }
    }
}
