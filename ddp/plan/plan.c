/* Bucket plans: the pure function from parameters, order and limits to buckets, and its explicit
 * form. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/plan.h"

static const size_t default_limits[] = { (size_t)1 << 20, (size_t)25 << 20 };

/* A bucket while the plan is being made: its slots are a run of `taken`, linked by `next`. */
typedef struct open_bucket {
    size_t first, last; /* entries of the chain, SIZE_MAX: none */
    size_t n, nbytes;   /* unpadded */
    size_t limit;
    size_t key;
} open_bucket;

typedef struct plan_key {
    dtr_dtype dtype;
    dtr_device device;
    size_t open; /* index of its open bucket, SIZE_MAX: none */
    size_t used; /* position in the limits */
} plan_key;

typedef struct builder {
    const dtr_plan_param *params;
    const size_t *limits;
    size_t n_limits;
    open_bucket *buckets; /* in order of opening */
    size_t n_buckets;
    plan_key *keys;
    size_t n_keys, cap_keys;
    size_t *next;   /* [n params] chain of a bucket */
    size_t *closed; /* buckets in order of closing */
    size_t n_closed;
} builder;

static const char *param_name(const dtr_plan_param *p) {
    return p->name != NULL ? p->name : "";
}

static dtr_status check_params(const dtr_plan_param *params, size_t n) {
    DTR_REQUIRE(params != NULL || n == 0, NULL, DTR_ERR_ARG,
                "params is NULL for %zu parameters of a bucket plan", n);
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        size_t size = dtr_dtype_size(params[i].dtype);
        DTR_REQUIRE(size != 0, NULL, DTR_ERR_DTYPE, "parameter '%s' (%zu): %d is no dtype",
                    param_name(&params[i]), i, (int)params[i].dtype);
        size_t nbytes;
        if (__builtin_mul_overflow(params[i].numel, size, &nbytes) ||
            nbytes > SIZE_MAX - 2 * DTR__PLAN_ALIGN ||
            __builtin_add_overflow(total, dtr__plan_round(nbytes), &total)) {
            return DTR_FAIL(NULL, DTR_ERR_OVERFLOW,
                            "parameter '%s' (%zu): %zu elements of %s do not fit into a plan",
                            param_name(&params[i]), i, params[i].numel,
                            dtr_dtype_name(params[i].dtype));
        }
    }
    return DTR_OK;
}

static size_t param_nbytes(const dtr_plan_param *p) {
    return p->numel * dtr_dtype_size(p->dtype);
}

static bool same_key(const dtr_plan_param *p, dtr_dtype dtype, dtr_device device) {
    return p->dtype == dtype && p->device.type == device.type && p->device.index == device.index;
}

/* The empty plan with room for everything; names are copied behind their pointers. */
static dtr_plan *plan_new(const dtr_plan_param *params, size_t n, size_t n_slots,
                          size_t n_buckets) {
    dtr_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) {
        return NULL;
    }
    size_t text = 0;
    for (size_t i = 0; i < n; i++) {
        text += strlen(param_name(&params[i])) + 1;
    }
    plan->slots = calloc(n_slots + 1, sizeof *plan->slots);
    plan->buckets = calloc(n_buckets + 1, sizeof *plan->buckets);
    plan->names = malloc((n + 1) * sizeof *plan->names + text);
    if (plan->slots == NULL || plan->buckets == NULL || plan->names == NULL) {
        (void)dtr_plan_destroy(plan);
        return NULL;
    }
    char *at = (char *)(plan->names + n + 1);
    for (size_t i = 0; i < n; i++) {
        plan->names[i] = at;
        at = stpcpy(at, param_name(&params[i])) + 1;
    }
    plan->n_params = n;
    return plan;
}

/* Append a parameter to the last bucket of a plan. */
static void plan_add_slot(dtr_plan *plan, dtr_plan_bucket *bucket, size_t param, size_t nbytes) {
    dtr_plan_slot *slot = &plan->slots[plan->n_slots++];
    if (bucket->n_slots++ == 0) {
        bucket->slots = slot;
    }
    *slot = (dtr_plan_slot){ .param = param, .offset = bucket->nbytes, .nbytes = nbytes };
    bucket->nbytes += dtr__plan_round(nbytes);
}

static size_t find_key(builder *b, const dtr_plan_param *p) {
    for (size_t k = 0; k < b->n_keys; k++) {
        if (same_key(p, b->keys[k].dtype, b->keys[k].device)) {
            return k;
        }
    }
    if (b->n_keys == b->cap_keys) {
        size_t cap = b->cap_keys == 0 ? 8 : 2 * b->cap_keys;
        plan_key *keys = realloc(b->keys, cap * sizeof *keys);
        if (keys == NULL) {
            return SIZE_MAX;
        }
        b->keys = keys;
        b->cap_keys = cap;
    }
    b->keys[b->n_keys] = (plan_key){ p->dtype, p->device, SIZE_MAX, 0 };
    return b->n_keys++;
}

static size_t open_new(builder *b, size_t key, size_t limit) {
    b->buckets[b->n_buckets] = (open_bucket){ SIZE_MAX, SIZE_MAX, 0, 0, limit, key };
    return b->n_buckets++;
}

static void add_to(builder *b, size_t bucket, size_t param) {
    open_bucket *o = &b->buckets[bucket];
    if (o->n++ == 0) {
        o->first = param;
    } else {
        b->next[o->last] = param;
    }
    o->last = param;
    b->next[param] = SIZE_MAX;
    o->nbytes += param_nbytes(&b->params[param]);
}

/* One parameter: into the open bucket of its key first, and only then the bucket may close. */
static bool place(builder *b, size_t param) {
    const dtr_plan_param *p = &b->params[param];
    size_t key = find_key(b, p);
    if (key == SIZE_MAX) {
        return false;
    }
    if (p->sparse) {
        size_t own = open_new(b, key, 0);
        add_to(b, own, param);
        b->closed[b->n_closed++] = own;
        return true;
    }
    plan_key *k = &b->keys[key];
    if (k->open == SIZE_MAX) {
        size_t at = k->used < b->n_limits ? k->used : b->n_limits - 1;
        k->open = open_new(b, key, b->limits[at]);
    }
    add_to(b, k->open, param);
    if (b->buckets[k->open].nbytes >= b->buckets[k->open].limit) {
        b->closed[b->n_closed++] = k->open;
        k->open = SIZE_MAX;
        k->used++;
    }
    return true;
}

static dtr_plan *finish(builder *b, size_t n, size_t n_order, bool reverse) {
    for (size_t k = 0; k < b->n_keys; k++) {
        if (b->keys[k].open != SIZE_MAX) {
            b->closed[b->n_closed++] = b->keys[k].open;
        }
    }
    dtr_plan *plan = plan_new(b->params, n, n_order, b->n_closed);
    if (plan == NULL) {
        return NULL;
    }
    for (size_t c = 0; c < b->n_closed; c++) {
        const open_bucket *o = &b->buckets[b->closed[reverse ? b->n_closed - 1 - c : c]];
        dtr_plan_bucket *bucket = &plan->buckets[plan->n_buckets++];
        bucket->limit = o->limit;
        bucket->dtype = b->keys[o->key].dtype;
        bucket->device = b->keys[o->key].device;
        for (size_t p = o->first; p != SIZE_MAX; p = b->next[p]) {
            plan_add_slot(plan, bucket, p, param_nbytes(&b->params[p]));
        }
    }
    return plan;
}

dtr_status dtr__plan_build(const dtr_plan_param *params, size_t n, const size_t *order,
                           size_t n_order, const size_t *limits, size_t n_limits, uint32_t flags,
                           dtr_plan **out) {
    DTR_TRY(check_params(params, n));
    bool reverse = (flags & DTR_DDP_SMALL_LAST) != 0;
    builder b = { .params = params,
                  .limits = n_limits > 0 ? limits : default_limits,
                  .n_limits =
                      n_limits > 0 ? n_limits : sizeof default_limits / sizeof default_limits[0] };
    b.buckets = malloc((n_order + 1) * sizeof *b.buckets);
    b.next = malloc((n + 1) * sizeof *b.next);
    b.closed = malloc((n_order + 1) * sizeof *b.closed);
    bool ok = b.buckets != NULL && b.next != NULL && b.closed != NULL;
    for (size_t k = 0; ok && k < n_order; k++) {
        size_t at = reverse ? n_order - 1 - k : k;
        ok = place(&b, order != NULL ? order[at] : at);
    }
    dtr_plan *plan = ok ? finish(&b, n, n_order, reverse) : NULL;
    free(b.buckets);
    free(b.keys);
    free(b.next);
    free(b.closed);
    DTR_REQUIRE(plan != NULL, NULL, DTR_ERR_NOMEM,
                "no memory for a bucket plan of %zu parameters: the process has reached its limit",
                n);
    *out = plan;
    return DTR_OK;
}

/* Marks the parameters of a list; the first one out of range or marked already is an error. */
static dtr_status mark(unsigned char *seen, size_t n, size_t param, const char *where, size_t at) {
    DTR_REQUIRE(param < n, NULL, DTR_ERR_ARG, "%s[%zu] is %zu, but there are %zu parameters", where,
                at, param, n);
    DTR_REQUIRE(!seen[param], NULL, DTR_ERR_ARG,
                "parameter %zu is listed twice (second time as %s[%zu])", param, where, at);
    seen[param] = 1;
    return DTR_OK;
}

static dtr_status check_order(const size_t *order, size_t n) {
    unsigned char *seen = calloc(n + 1, 1);
    DTR_REQUIRE(seen != NULL, NULL, DTR_ERR_NOMEM, "no memory to check an order of %zu parameters",
                n);
    dtr_status s = DTR_OK;
    for (size_t k = 0; k < n && s == DTR_OK; k++) {
        s = mark(seen, n, order[k], "order", k);
    }
    free(seen);
    return s;
}

dtr_status dtr_plan_compute(const dtr_plan_param *params, size_t n, const size_t *order,
                            const size_t *limits, size_t n_limits, uint32_t flags,
                            dtr_plan **plan) {
    DTR_REQUIRE(plan != NULL, NULL, DTR_ERR_ARG, "dtr_plan_compute: plan is NULL");
    DTR_REQUIRE(limits != NULL || n_limits == 0, NULL, DTR_ERR_ARG,
                "dtr_plan_compute: limits is NULL, but n_limits is %zu", n_limits);
    DTR_REQUIRE((flags & ~(uint32_t)DTR_DDP_SMALL_LAST) == 0, NULL, DTR_ERR_ARG,
                "dtr_plan_compute: flags 0x%x: only DTR_DDP_SMALL_LAST (0x%x) is known here", flags,
                (unsigned)DTR_DDP_SMALL_LAST);
    DTR_TRY(check_params(params, n));
    if (order != NULL) {
        DTR_TRY(check_order(order, n));
    }
    return dtr__plan_build(params, n, order, n, limits, n_limits, flags, plan);
}

/* One list of an explicit plan: not empty, one dtype and device, sparse alone, nothing twice. */
static dtr_status check_list(const dtr_plan_param *params, size_t n, const size_t *list, size_t len,
                             size_t b, unsigned char *seen) {
    DTR_REQUIRE(len > 0 && list != NULL, NULL, DTR_ERR_ARG,
                "bucket %zu of the explicit plan is empty", b);
    for (size_t k = 0; k < len; k++) {
        DTR_TRY(mark(seen, n, list[k], "bucket", k));
        const dtr_plan_param *p = &params[list[k]], *first = &params[list[0]];
        DTR_REQUIRE(same_key(p, first->dtype, first->device), NULL, DTR_ERR_ARG,
                    "bucket %zu mixes parameter '%s' (%s, device %d:%d) with '%s' (%s, device "
                    "%d:%d): a bucket has one dtype and one device",
                    b, param_name(first), dtr_dtype_name(first->dtype), (int)first->device.type,
                    first->device.index, param_name(p), dtr_dtype_name(p->dtype),
                    (int)p->device.type, p->device.index);
        DTR_REQUIRE(!p->sparse || len == 1, NULL, DTR_ERR_ARG,
                    "bucket %zu holds the sparse parameter '%s' and %zu more: it needs a bucket of "
                    "its own",
                    b, param_name(p), len - 1);
    }
    return DTR_OK;
}

static dtr_status check_lists(const dtr_plan_param *params, size_t n, const size_t *const *buckets,
                              const size_t *lens, size_t n_buckets, unsigned char *seen) {
    for (size_t b = 0; b < n_buckets; b++) {
        DTR_TRY(check_list(params, n, buckets[b], lens[b], b, seen));
    }
    for (size_t i = 0; i < n; i++) {
        DTR_REQUIRE(seen[i], NULL, DTR_ERR_ARG,
                    "parameter '%s' (%zu) is in no bucket of the explicit plan",
                    param_name(&params[i]), i);
    }
    return DTR_OK;
}

dtr_status dtr_plan_explicit(const dtr_plan_param *params, size_t n, const size_t *const *buckets,
                             const size_t *lens, size_t n_buckets, dtr_plan **out) {
    DTR_REQUIRE(out != NULL, NULL, DTR_ERR_ARG, "dtr_plan_explicit: plan is NULL");
    DTR_REQUIRE((buckets != NULL && lens != NULL) || n_buckets == 0, NULL, DTR_ERR_ARG,
                "dtr_plan_explicit: buckets or lens is NULL for %zu buckets", n_buckets);
    DTR_TRY(check_params(params, n));
    unsigned char *seen = calloc(n + 1, 1);
    DTR_REQUIRE(seen != NULL, NULL, DTR_ERR_NOMEM, "no memory to check a plan of %zu parameters",
                n);
    dtr_status s = check_lists(params, n, buckets, lens, n_buckets, seen);
    free(seen);
    DTR_TRY(s);
    dtr_plan *plan = plan_new(params, n, n, n_buckets);
    DTR_REQUIRE(plan != NULL, NULL, DTR_ERR_NOMEM, "no memory for a bucket plan of %zu parameters",
                n);
    for (size_t b = 0; b < n_buckets; b++) {
        dtr_plan_bucket *bucket = &plan->buckets[plan->n_buckets++];
        bucket->dtype = params[buckets[b][0]].dtype;
        bucket->device = params[buckets[b][0]].device;
        for (size_t k = 0; k < lens[b]; k++) {
            plan_add_slot(plan, bucket, buckets[b][k], param_nbytes(&params[buckets[b][k]]));
        }
    }
    *out = plan;
    return DTR_OK;
}

size_t dtr_plan_bucket_count(const dtr_plan *plan) {
    return plan != NULL ? plan->n_buckets : 0;
}

const dtr_plan_bucket *dtr_plan_get_bucket(const dtr_plan *plan, size_t b) {
    return plan != NULL && b < plan->n_buckets ? &plan->buckets[b] : NULL;
}

dtr_status dtr_plan_destroy(dtr_plan *plan) {
    if (plan != NULL) {
        free(plan->slots);
        free(plan->buckets);
        free(plan->names);
        free(plan);
    }
    return DTR_OK;
}
