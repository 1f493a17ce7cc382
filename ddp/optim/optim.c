/* Making the library's optimizers: their options, and the arrays of their state. */
#include <math.h>
#include <stdlib.h>

#include "optim_internal.h"

static const char *const array_names[DTR__OPTIM_ARRAYS] = { "m", "v", "master" };

dtr_status dtr__optim_check(const dtr_optim *o, const char *entry) {
    DTR_TRY(dtr__fork_check(entry));
    DTR_REQUIRE(o != NULL && o->magic == DTR__OPTIM_MAGIC, NULL, DTR_ERR_ARG,
                "%s: the pointer %p is no optimizer, or a destroyed one", entry, (const void *)o);
    return DTR_OK;
}

/* ---- options ---- */

static dtr_status check_range(const char *name, double x, double limit) {
    DTR_REQUIRE(x >= 0 && x < limit, NULL, DTR_ERR_ARG, /* NaN too */
                "dtr_optim_options.%s is %g: give a number from 0 to below %g", name, x, limit);
    return DTR_OK;
}

static dtr_status read_options(const dtr_optim_options *given, dtr_optim_options *o) {
    DTR_TRY(dtr__options_copy(given, o, sizeof *o, "dtr_optim_options"));
    DTR_REQUIRE((unsigned)o->rule <= DTR_OPTIM_ADAMW, NULL, DTR_ERR_ARG,
                "dtr_optim_options.rule is %d; known are DTR_OPTIM_SGD, _ADAM and _ADAMW (0 to %d)",
                (int)o->rule, (int)DTR_OPTIM_ADAMW);
    DTR_TRY(check_range("rate", o->rate, INFINITY));
    DTR_TRY(check_range("momentum", o->momentum, INFINITY));
    DTR_TRY(check_range("beta1", o->beta1, 1));
    DTR_TRY(check_range("beta2", o->beta2, 1));
    DTR_TRY(check_range("epsilon", o->epsilon, INFINITY));
    DTR_TRY(check_range("weight_decay", o->weight_decay, INFINITY));
    DTR_TRY(check_range("max_norm", o->max_norm, INFINITY));
    DTR_REQUIRE(!o->nesterov || (o->rule == DTR_OPTIM_SGD && o->momentum > 0), NULL, DTR_ERR_ARG,
                "dtr_optim_options.nesterov needs DTR_OPTIM_SGD with momentum > 0");
    o->rate = o->rate > 0 ? o->rate : 1e-3;
    o->beta1 = o->beta1 > 0 ? o->beta1 : 0.9;
    o->beta2 = o->beta2 > 0 ? o->beta2 : 0.999;
    o->epsilon = o->epsilon > 0 ? o->epsilon : 1e-8;
    return DTR_OK;
}

/* ---- state ---- */

static bool serves(dtr_dtype d) {
    return d == DTR_F16 || d == DTR_BF16 || d == DTR_F32 || d == DTR_F64;
}

static bool has_array(const dtr_optim *o, dtr_dtype d, int array) {
    bool adam = o->o.rule != DTR_OPTIM_SGD;
    return array == 0 ? adam || o->o.momentum > 0 : array == 1 ? adam : dtr_dtype_size(d) == 2;
}

static dtr_status make_array(const dtr_optim *o, dtr__optim_part *part, int a, dtr_dtype dtype) {
    dtr_ddp *ddp = o->ddp;
    bool plain = false;
    if (dtr__ddp_on_device(ddp)) {
        DTR_TRY(ddp->mover->make(ddp->world, ddp->device, dtype, (int64_t)part->count,
                                 &part->memory[a], &plain));
        part->array[a] = part->memory[a]->data;
        return DTR_OK;
    }
    part->array[a] = calloc(part->count, dtr_dtype_size(dtype));
    DTR_REQUIRE(part->array[a] != NULL, NULL, DTR_ERR_NOMEM,
                "no memory for an optimizer's state of %zu elements", part->count);
    return DTR_OK;
}

static dtr_status make_part(dtr_optim *o, dtr_dtype d) {
    dtr__optim_part *part = &o->part[d];
    part->wide = d == DTR_F64;
    const dtr_dtype arrays = part->wide ? DTR_F64 : DTR_F32;
    if (dtr__ddp_on_device(o->ddp) && part->count > 0) {
        part->table = calloc(1, sizeof *part->table);
        DTR_REQUIRE(part->table != NULL, NULL, DTR_ERR_NOMEM, "no memory for an optimizer");
        part->table->kernel =
            o->o.rule == DTR_OPTIM_SGD ? DTR__STEP_KERNEL(sgd, d) : DTR__STEP_KERNEL(adam, d);
    }
    for (int a = 0; a < DTR__OPTIM_ARRAYS && part->count > 0; a++) {
        if (!has_array(o, d, a)) {
            continue;
        }
        DTR_TRY(make_array(o, part, a, arrays));
        dtr_zero_state *state = &o->states[o->n_states];
        char *name = o->names[o->n_states++];
        snprintf(name, sizeof o->names[0], "%s.%s", array_names[a], dtr_dtype_name(d));
        *state = (dtr_zero_state){
            .name = name,
            .param_dtype = d,
            .data = { part->array[a], part->count, arrays, o->ddp->device },
        };
    }
    return DTR_OK;
}

/* Ranges arrive in ascending order; neighbours are joined. */
static void add_undecayed(dtr__optim_part *part, size_t begin, size_t count) {
    if (part->n_undecayed > 0 && part->undecayed[part->n_undecayed - 1].end == begin) {
        part->undecayed[part->n_undecayed - 1].end += count;
    } else {
        part->undecayed[part->n_undecayed++] = (dtr__optim_range){ begin, begin + count };
    }
}

static bool decays(const dtr_optim *o, size_t i) {
    return o->ddp->params[i].value->ndim >= o->o.decay_min_ndim;
}

static void lay_out_shard(dtr_optim *o) {
    const dtr_zero *z = o->zero;
    for (size_t b = 0; b < z->n_buckets; b++) {
        dtr__zero_piece piece;
        for (size_t s = 0; dtr__zero_next(z, b, o->ddp->rank, &s, &piece);) {
            if (!decays(o, piece.param)) {
                add_undecayed(&o->part[z->buckets[b].dtype], z->buckets[b].first + piece.at,
                              piece.count);
            }
        }
    }
    for (int d = 0; d < DTR__ZERO_TYPES; d++) {
        o->part[d].count = z->count[d];
    }
}

static void lay_out_whole(dtr_optim *o) {
    for (size_t i = 0; i < o->ddp->n; i++) {
        if (!dtr__optim_has(o->ddp, i)) {
            continue;
        }
        const dtr_tensor *value = o->ddp->params[i].value;
        dtr__optim_part *part = &o->part[value->dtype];
        o->begin[i] = part->count;
        if (!decays(o, i) && value->numel > 0) {
            add_undecayed(part, part->count, value->numel);
        }
        part->count += value->numel;
    }
}

static dtr_status fill(dtr_optim *o, const dtr_optim_options *given) {
    dtr_ddp *ddp = o->ddp;
    DTR_TRY(read_options(given, &o->o));
    DTR_REQUIRE(o->zero != NULL || ddp->zero == NULL, NULL, DTR_ERR_ARG,
                "dtr_optim_create: zero is NULL, but the module is sharded; give its dtr_zero");
    for (size_t i = 0; i < ddp->n; i++) {
        const dtr__ddp_param *p = &ddp->params[i];
        DTR_REQUIRE(!dtr__optim_has(ddp, i) || !dtr__ddp_on_device(ddp) || o->zero != NULL ||
                        p->value->contiguous,
                    NULL, DTR_ERR_UNSUPPORTED,
                    "parameter '%s' (%zu) is on a CUDA device and not contiguous; give a "
                    "contiguous one, or shard the optimizer (dtr_zero_create)",
                    p->name, i);
        DTR_REQUIRE(!dtr__optim_has(ddp, i) || serves(p->value->dtype), NULL, DTR_ERR_UNSUPPORTED,
                    "parameter '%s' (%zu) is %s; the optimizers work on f16, bf16, f32 and f64",
                    p->name, i, dtr_dtype_name(p->value->dtype));
    }
    o->begin = calloc(ddp->n + 1, sizeof *o->begin);
    bool memory = o->begin != NULL;
    for (int d = 0; d < DTR__ZERO_TYPES && memory; d++) {
        if (serves((dtr_dtype)d)) {
            o->part[d].undecayed = calloc(ddp->n + 1, sizeof(dtr__optim_range));
            memory = o->part[d].undecayed != NULL;
        }
    }
    DTR_REQUIRE(memory, NULL, DTR_ERR_NOMEM, "no memory for an optimizer of %zu parameters",
                ddp->n);
    if (o->zero != NULL) {
        lay_out_shard(o);
    } else {
        lay_out_whole(o);
    }
    for (int d = 0; d < DTR__ZERO_TYPES; d++) {
        DTR_TRY(make_part(o, (dtr_dtype)d));
    }
    return DTR_OK;
}

static void optim_free(dtr_optim *o) {
    for (int d = 0; d < DTR__ZERO_TYPES; d++) {
        for (int a = 0; a < DTR__OPTIM_ARRAYS; a++) {
            dtr_tensor_release(o->part[d].memory[a]);
            free(o->part[d].memory[a] == NULL ? o->part[d].array[a] : NULL);
        }
        free(o->part[d].table);
        free(o->part[d].undecayed);
    }
    free(o->begin);
    dtr__texts_free(&o->metadata);
    o->magic = 0;
    free(o);
}

dtr_status dtr_optim_create(dtr_ddp *ddp, dtr_zero *zero, const dtr_optim_options *options,
                            dtr_optim **optim) {
    static const char entry[] = "dtr_optim_create";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    if (zero != NULL) {
        DTR_TRY(dtr__zero_check(zero, entry));
        DTR_REQUIRE(zero->ddp == ddp, NULL, DTR_ERR_ARG, "%s: zero belongs to another module",
                    entry);
    }
    DTR_REQUIRE(optim != NULL, NULL, DTR_ERR_ARG, "%s: optim is NULL, the result has no place",
                entry);
    dtr_optim *o = calloc(1, sizeof *o);
    DTR_REQUIRE(o != NULL, NULL, DTR_ERR_NOMEM, "%s: no memory", entry);
    o->ddp = ddp;
    o->zero = zero;
    dtr_status s = fill(o, options);
    if (s < 0) {
        optim_free(o);
        return s;
    }
    o->magic = DTR__OPTIM_MAGIC;
    *optim = o;
    return DTR_OK;
}

dtr_status dtr_optim_destroy(dtr_optim *o) {
    if (o == NULL) {
        return DTR_OK;
    }
    DTR_TRY(dtr__optim_check(o, "dtr_optim_destroy"));
    optim_free(o);
    return DTR_OK;
}

/* ---- settings and questions ---- */

dtr_status dtr_optim_set_rate(dtr_optim *o, double rate) {
    DTR_TRY(dtr__optim_check(o, "dtr_optim_set_rate"));
    DTR_REQUIRE(rate >= 0 && rate < INFINITY, NULL, DTR_ERR_ARG,
                "dtr_optim_set_rate: rate is %g: give a finite number, not below 0", rate);
    o->o.rate = rate;
    return DTR_OK;
}

dtr_status dtr_optim_set_steps(dtr_optim *o, uint64_t steps) {
    DTR_TRY(dtr__optim_check(o, "dtr_optim_set_steps"));
    o->steps = steps;
    return DTR_OK;
}

uint64_t dtr_optim_steps(const dtr_optim *o) {
    return dtr__optim_check(o, "dtr_optim_steps") == DTR_OK ? o->steps : 0;
}

size_t dtr_optim_state_count(const dtr_optim *o) {
    return dtr__optim_check(o, "dtr_optim_state_count") == DTR_OK ? o->n_states : 0;
}

size_t dtr_optim_state_nbytes(const dtr_optim *o) {
    size_t nbytes = 0;
    for (size_t k = 0; k < dtr_optim_state_count(o); k++) {
        nbytes += o->states[k].data.count * dtr_dtype_size(o->states[k].data.dtype);
    }
    return nbytes;
}

dtr_status dtr_optim_state(const dtr_optim *o, size_t k, dtr_zero_state *state) {
    DTR_TRY(dtr__optim_check(o, "dtr_optim_state"));
    DTR_REQUIRE(state != NULL, NULL, DTR_ERR_ARG, "dtr_optim_state: state is NULL");
    DTR_REQUIRE(k < o->n_states, NULL, DTR_ERR_ARG,
                "dtr_optim_state: there is no array %zu, the optimizer has %zu", k, o->n_states);
    *state = o->states[k];
    return DTR_OK;
}
