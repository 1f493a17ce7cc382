/* Comparing models across ranks. One fixed record per rank is gathered: status of the local
 * checks, counts, option values and hashes; only when something differs do further exchanges find
 * the first parameter concerned. */
#include <stdlib.h>

#include "core/call_site.h"
#include "core/team.h"
#include "engine/engine.h"
#include "module.h"

/* Options that must agree: name, and how a value is printed. */
typedef enum option_kind { OPT_NUMBER, OPT_BOOL, OPT_DTYPE, OPT_HASH } option_kind;
typedef enum option_id {
    O_FLAGS,
    O_LIMITS,
    O_FIRST_LIMIT,
    O_LAST_LIMIT,
    O_FIND_UNUSED,
    O_STATIC,
    O_SKIP_UNUSED,
    O_NO_INIT_SYNC,
    O_NO_BUFFERS,
    O_REDUCE_DTYPE,
    O_PARAM_DTYPE,
    O_BUFFER_DTYPE,
    O_DELAYED,
    O_COUNT
} option_id;
static const struct {
    const char *name;
    option_kind kind;
} options[O_COUNT] = {
    [O_FLAGS] = { "flags", OPT_NUMBER },
    [O_LIMITS] = { "plan_limits", OPT_HASH },
    [O_FIRST_LIMIT] = { "first_bucket_bytes", OPT_NUMBER },
    [O_LAST_LIMIT] = { "bucket_cap_bytes", OPT_NUMBER },
    [O_FIND_UNUSED] = { "find_unused", OPT_BOOL },
    [O_STATIC] = { "static_graph", OPT_BOOL },
    [O_SKIP_UNUSED] = { "skip_unused", OPT_BOOL },
    [O_NO_INIT_SYNC] = { "no_init_sync", OPT_BOOL },
    [O_NO_BUFFERS] = { "no_broadcast_buffers", OPT_BOOL },
    [O_REDUCE_DTYPE] = { "reduce_dtype", OPT_DTYPE },
    [O_PARAM_DTYPE] = { "param_dtype", OPT_DTYPE },
    [O_BUFFER_DTYPE] = { "buffer_dtype", OPT_DTYPE },
    [O_DELAYED] = { "delayed", OPT_HASH },
};

typedef struct record {
    int64_t status; /* of the local checks */
    uint64_t n_params, n_buffers;
    uint64_t params, buffers, plan; /* hashes */
    uint64_t option[O_COUNT];
    char text[400];
} record;

static void put_options(const dtr_ddp *ddp, uint64_t *option) {
    const dtr__ddp_settings *set = &ddp->set;
    uint64_t h = dtr__hash_u64(DTR__HASH_START, set->n_limits);
    for (size_t k = 0; k < set->n_limits; k++) {
        h = dtr__hash_u64(h, set->limits[k]);
    }
    option[O_FLAGS] = set->flags;
    option[O_LIMITS] = set->n_limits == 2 ? 0 : h; /* two are named one by one */
    option[O_FIRST_LIMIT] = set->n_limits > 0 ? set->limits[0] : 0;
    option[O_LAST_LIMIT] = set->n_limits > 0 ? set->limits[set->n_limits - 1] : 0;
    h = dtr__hash_u64(DTR__HASH_START, ddp->reducer->delayed.trigger);
    for (size_t k = 0; k < ddp->reducer->delayed.n; k++) {
        h = dtr__hash_u64(h, ddp->reducer->delayed.list[k]);
    }
    option[O_DELAYED] = ddp->reducer->delayed.n == 0 ? 0 : h;
    option[O_FIND_UNUSED] = set->unused_asked;
    option[O_STATIC] = set->static_graph;
    option[O_SKIP_UNUSED] = set->skip_unused;
    option[O_NO_INIT_SYNC] = set->no_init_sync;
    option[O_NO_BUFFERS] = set->no_buffers;
    option[O_REDUCE_DTYPE] = set->has_reduce_dtype ? (uint64_t)set->reduce_dtype + 1 : 0;
    option[O_PARAM_DTYPE] = set->has_param_dtype ? (uint64_t)set->param_dtype + 1 : 0;
    option[O_BUFFER_DTYPE] = set->has_buffer_dtype ? (uint64_t)set->buffer_dtype + 1 : 0;
}

static const char *option_text(option_id id, uint64_t value, char *text, size_t cap) {
    switch (options[id].kind) {
    case OPT_BOOL:
        return value != 0 ? "true" : "false";
    case OPT_DTYPE:
        return value == 0 ? "not set" : dtr_dtype_name((dtr_dtype)(value - 1));
    case OPT_HASH:
        return value != 0 ? "another list" : id == O_DELAYED ? "none" : "two limits";
    case OPT_NUMBER:
        break;
    }
    snprintf(text, cap, "%llu", (unsigned long long)value);
    return text;
}

/* ---- descriptions ---- */

/* Of ignored ones only name and flag: their shape is the rank's own business. */
static uint64_t entry_hash(const dtr__ddp_param *p) {
    uint64_t h = dtr__hash_text(DTR__HASH_START, p->name);
    h = dtr__hash_u64(h, p->flags);
    h = dtr__hash_u64(h, p->same_as);
    if (p->value != NULL) {
        h = dtr__hash_u64(h, (uint64_t)p->value->device.type << 8 | (uint64_t)p->value->dtype);
        h = dtr__hash_u64(h, (uint64_t)p->value->ndim);
        for (int d = 0; d < p->value->ndim; d++) {
            h = dtr__hash_u64(h, (uint64_t)p->value->shape[d]);
            h = dtr__hash_u64(h, (uint64_t)p->value->strides[d]);
        }
    }
    return h;
}

static uint64_t list_hash(const dtr__ddp_param *p, size_t n) {
    uint64_t h = dtr__hash_u64(DTR__HASH_START, n);
    for (size_t i = 0; i < n; i++) {
        h = dtr__hash_u64(h, entry_hash(&p[i]));
    }
    return h;
}

enum { DESCRIPTION = 256 };

static void describe(const dtr__ddp_param *p, char *text) {
    dtr__text t = { text, DESCRIPTION, 0 };
    dtr__text_add(&t, "'%.80s'", p->name);
    if (p->value != NULL) {
        char shape[DTR__SHAPE_TEXT], strides[DTR__SHAPE_TEXT];
        dtr__text_add(&t, " %s %s", dtr_dtype_name(p->value->dtype),
                      dtr__shape_text(p->value->ndim, p->value->shape, shape));
        if (!p->value->contiguous) {
            dtr__text_add(&t, " strides %s",
                          dtr__shape_text(p->value->ndim, p->value->strides, strides));
        }
        dtr__text_add(&t, "%s", p->value->device.type != DTR_CPU ? " on a CUDA device" : "");
    }
    dtr__text_add(&t, "%s%s%s%s", p->flags & DTR_PARAM_FROZEN ? " frozen" : "",
                  p->flags & DTR_PARAM_IGNORED ? " ignored" : "",
                  p->flags & DTR_PARAM_SPARSE ? " sparse" : "",
                  p->trainable || p->delayed || p->flags != 0 ? "" : " shared");
}

/* ---- exchanges ---- */

static dtr_status gather(dtr_ddp *ddp, const void *mine, void *all, size_t nbytes,
                         const char *label) {
    dtr_coll_options o = dtr__ddp_options(ddp, label);
    return dtr_allgather(ddp->group, dtr_cpu((void *)(uintptr_t)mine, nbytes, DTR_U8),
                         dtr_cpu(all, nbytes * (size_t)ddp->size, DTR_U8), &o, NULL);
}

/* This rank cannot take part in an exchange the others are in: they are released by breaking the
 * module's group. */
static dtr_status no_memory(dtr_ddp *ddp, const char *what) {
    dtr_status s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory to compare %s across ranks", what);
    dtr__group_break(ddp->group, s);
    return s;
}

/* The first entry whose hash differs from rank 0's, and the lowest rank where it does. */
static bool first_difference(const uint64_t *all, size_t n, int size, size_t *entry, int *rank) {
    for (size_t i = 0; i < n; i++) {
        for (int r = 1; r < size; r++) {
            if (all[(size_t)r * n + i] != all[i]) {
                *entry = i;
                *rank = r;
                return true;
            }
        }
    }
    return false;
}

/* Counts are equal. Every rank comes here or none. */
static dtr_status name_difference(dtr_ddp *ddp, const dtr__ddp_param *p, size_t n,
                                  const char *what) {
    uint64_t *all = malloc((n + 1) * ((size_t)ddp->size + 1) * sizeof *all);
    char *texts = malloc((size_t)ddp->size * DESCRIPTION);
    char mine[DESCRIPTION] = "";
    size_t at = 0;
    int rank = 0;
    dtr_status s = all != NULL && texts != NULL ? DTR_OK : no_memory(ddp, "models");
    if (s == DTR_OK) {
        uint64_t *own = all + n * (size_t)ddp->size;
        for (size_t i = 0; i < n; i++) {
            own[i] = entry_hash(&p[i]);
        }
        s = gather(ddp, own, all, n * sizeof *all, "ddp find difference");
    }
    if (s == DTR_OK && first_difference(all, n, ddp->size, &at, &rank)) {
        describe(&p[at], mine);
        s = gather(ddp, mine, texts, DESCRIPTION, "ddp describe difference");
        if (s == DTR_OK) {
            s = DTR_FAIL(NULL, DTR_ERR_MISMATCH,
                         "%s %zu differs: on rank 0 it is %s, on rank %d %s; build the same model "
                         "on every rank",
                         what, at, texts, rank, texts + (size_t)rank * DESCRIPTION);
        }
    }
    free(all);
    free(texts);
    return s;
}

/* ---- the decision, the same on every rank ---- */

static dtr_status judge_statuses(const dtr_ddp *ddp, const record *all) {
    for (int r = 0; r < ddp->size; r++) {
        if (all[r].status < 0) {
            dtr_status s = (dtr_status)all[r].status;
            dtr_status mine = (dtr_status)all[ddp->rank].status;
            if (dtr__ddp_own_failure(s) && r != ddp->rank) {
                s = dtr__ddp_own_failure(mine) ? mine : DTR_ERR_REMOTE;
            }
            return DTR_FAIL(NULL, s, "dtr_ddp_create: rank %d: %s", r, all[r].text);
        }
    }
    return DTR_OK;
}

static dtr_status judge_options(const dtr_ddp *ddp, const record *all) {
    char a[32], b[32];
    for (int id = 0; id < O_COUNT; id++) {
        for (int r = 1; r < ddp->size; r++) {
            uint64_t x = all[0].option[id], y = all[r].option[id];
            DTR_REQUIRE(x == y, NULL, DTR_ERR_MISMATCH,
                        "option %s differs: %s on rank 0, %s on rank %d; give all ranks the same "
                        "options",
                        options[id].name, option_text((option_id)id, x, a, sizeof a),
                        option_text((option_id)id, y, b, sizeof b), r);
        }
    }
    return DTR_OK;
}

static dtr_status judge_counts(const dtr_ddp *ddp, const record *all) {
    for (int r = 1; r < ddp->size; r++) {
        DTR_REQUIRE(all[r].n_params == all[0].n_params, NULL, DTR_ERR_MISMATCH,
                    "rank 0 has %llu parameters, rank %d has %llu",
                    (unsigned long long)all[0].n_params, r, (unsigned long long)all[r].n_params);
        DTR_REQUIRE(all[r].n_buffers == all[0].n_buffers, NULL, DTR_ERR_MISMATCH,
                    "rank 0 has %llu buffers, rank %d has %llu",
                    (unsigned long long)all[0].n_buffers, r, (unsigned long long)all[r].n_buffers);
    }
    return DTR_OK;
}

static dtr_status judge(dtr_ddp *ddp, const record *all) {
    DTR_TRY(judge_statuses(ddp, all));
    DTR_TRY(judge_options(ddp, all));
    DTR_TRY(judge_counts(ddp, all));
    bool params = true, buffers = true, plan = true;
    for (int r = 1; r < ddp->size; r++) {
        params = params && all[r].params == all[0].params;
        buffers = buffers && all[r].buffers == all[0].buffers;
        plan = plan && all[r].plan == all[0].plan;
    }
    if (!params) {
        DTR_TRY(name_difference(ddp, ddp->params, ddp->n, "parameter"));
    }
    if (!buffers) {
        DTR_TRY(
            name_difference(ddp, ddp->reducer->buffers.list, ddp->reducer->buffers.n, "buffer"));
    }
    DTR_REQUIRE(params && buffers && plan, NULL, DTR_ERR_MISMATCH,
                "the ranks' bucket plans differ although parameters and options are equal: do all "
                "ranks run the same build of the library?");
    return DTR_OK;
}

dtr_status dtr__ddp_verify(dtr_ddp *ddp, dtr_status mine) {
    record own = { .status = mine, .n_params = ddp->n, .n_buffers = ddp->reducer->buffers.n };
    if (mine < 0) {
        snprintf(own.text, sizeof own.text, "%.*s", (int)sizeof own.text - 1,
                 dtr_last_error_message());
    } else {
        own.params = list_hash(ddp->params, ddp->n);
        own.buffers = list_hash(ddp->reducer->buffers.list, ddp->reducer->buffers.n);
        own.plan = dtr_plan_hash(ddp->plan);
        put_options(ddp, own.option);
    }
    record *all = calloc((size_t)ddp->size, sizeof *all);
    if (all == NULL) {
        return no_memory(ddp, "models");
    }
    dtr_status s = gather(ddp, &own, all, sizeof own, "ddp verify");
    if (s == DTR_OK) {
        s = judge(ddp, all);
    }
    free(all);
    return s;
}

/* ---- dtr_ddp_check_equal ---- */

static uint64_t value_hash(dtr_ddp *ddp, const dtr_tensor *t, dtr_status *s) {
    size_t nbytes = t->numel * dtr_dtype_size(t->dtype);
    uint64_t there = 0;
    if (dtr__ddp_on_device(ddp)) {
        *s = *s == DTR_OK ? dtr__ddp_device_hash(ddp, t, &there) : *s;
        return there;
    }
    if (t->contiguous) {
        return dtr__hash_bytes(DTR__HASH_START, t->data, nbytes);
    }
    char *packed = malloc(nbytes + 1);
    if (packed == NULL) {
        *s = no_memory(ddp, "parameters");
        return 0;
    }
    dtr__tensor_pack(packed, t);
    uint64_t h = dtr__hash_bytes(DTR__HASH_START, packed, nbytes);
    free(packed);
    return h;
}

static dtr_status name_unequal(dtr_ddp *ddp, const uint64_t *all) {
    size_t at = 0;
    int rank = 0;
    if (!first_difference(all, ddp->n, ddp->size, &at, &rank)) {
        return DTR_OK;
    }
    int others = 0;
    for (int r = 1; r < ddp->size; r++) {
        others += all[(size_t)r * ddp->n + at] != all[at] ? 1 : 0;
    }
    return DTR_FAIL(NULL, DTR_ERR_MISMATCH,
                    "parameter '%s' (%zu) differs between rank 0 and rank %d (and %d more); the "
                    "ranks no longer train the same model",
                    ddp->params[at].name, at, rank, others - 1);
}

static dtr_status compare_values(dtr_ddp *ddp) {
    uint64_t *all = malloc(ddp->n * ((size_t)ddp->size + 1) * sizeof *all);
    if (all == NULL) {
        return no_memory(ddp, "parameters");
    }
    uint64_t *own = all + ddp->n * (size_t)ddp->size;
    dtr_status s = DTR_OK;
    for (size_t i = 0; i < ddp->n; i++) {
        own[i] = ddp->params[i].value != NULL ? value_hash(ddp, ddp->params[i].value, &s) : 0;
    }
    if (s == DTR_OK) {
        s = gather(ddp, own, all, ddp->n * sizeof *all, "ddp check equal");
    } else { /* the others wait for this rank */
        dtr__group_break(ddp->group, s);
    }
    if (s == DTR_OK) {
        s = name_unequal(ddp, all);
    }
    free(all);
    return s;
}

static dtr_status ddp_check_equal(dtr_ddp *ddp) {
    static const char entry[] = "dtr_ddp_check_equal";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    DTR_TRY(dtr__ddp_occupy(ddp, entry, "call it between iterations"));
    bool broken;
    dtr_status s = dtr__ddp_late_take(ddp, &broken);
    if (s < 0) {
        return broken ? s : dtr__ddp_leave(ddp, s);
    }
    return dtr__ddp_leave(ddp, compare_values(ddp));
}

dtr_status dtr_ddp_check_equal(dtr_ddp *ddp) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_ddp_check_equal", ddp_check_equal(ddp));
}
