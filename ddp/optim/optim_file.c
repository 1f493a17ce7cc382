/* Checkpoints of an optimizer: which of its arrays are in them. */
#include <stdlib.h>

#include "core/call_site.h"
#include "optim_internal.h"

static dtr_status share_of(dtr_optim *o, const char *entry, size_t *count, dtr__share *sh) {
    DTR_TRY(dtr__optim_check(o, entry));
    DTR_TRY(o->zero != NULL ? dtr__zero_check(o->zero, entry) : dtr__ddp_check(o->ddp, entry));
    if (o->zero == NULL) {
        DTR_TRY(dtr__ddp_refuse_sharded(o->ddp, entry));
    }
    for (int d = 0; d < DTR__ZERO_TYPES; d++) {
        count[d] = o->part[d].count;
    }
    *sh = (dtr__share){ .ddp = o->ddp, .zero = o->zero, .begin = o->begin, .count = count };
    return DTR_OK;
}

/* ---- state on a device, through host memory ---- */

typedef dtr_zero_state arrays[DTR__OPTIM_ARRAYS * 4];

static void drop_copies(const dtr_optim *o, const dtr_zero_state *here) {
    for (size_t k = 0; k < o->n_states && here[k].data.data != o->states[k].data.data; k++) {
        free(here[k].data.data);
    }
}

/* The same arrays in host memory, theirs where they are there already. */
static dtr_status make_copies(const dtr_optim *o, dtr_zero_state *here) {
    memcpy(here, o->states, sizeof o->states);
    for (size_t k = 0; k < o->n_states && dtr__ddp_on_device(o->ddp); k++) {
        const dtr_buffer *b = &o->states[k].data;
        void *copy = calloc(b->count + 1, dtr_dtype_size(b->dtype)); /* padding is zero */
        if (copy == NULL) {
            drop_copies(o, here);
            return DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for a copy of an optimizer's state");
        }
        here[k].data = dtr_cpu(copy, b->count, b->dtype);
    }
    return DTR_OK;
}

static dtr_status move_copies(const dtr_optim *o, const dtr_zero_state *here, bool fetch) {
    for (size_t k = 0; k < o->n_states && dtr__ddp_on_device(o->ddp); k++) {
        const dtr_buffer *a = &here[k].data, *b = &o->states[k].data;
        const size_t nbytes = b->count * dtr_dtype_size(b->dtype);
        DTR_TRY(fetch ? dtr__zero_fetch(o->ddp, a->data, b->data, nbytes)
                      : dtr__zero_store(o->ddp, b->data, a->data, nbytes));
    }
    return DTR_OK;
}

static dtr_status save(dtr_optim *o, const char *entry, const char *path,
                       const dtr_optim_extra *extra) {
    size_t count[DTR__ZERO_TYPES];
    dtr__share sh;
    DTR_TRY(share_of(o, entry, count, &sh));
    arrays here;
    DTR_TRY(make_copies(o, here));
    dtr_status s = move_copies(o, here, true);
    s = s == DTR_OK ? dtr__share_save(&sh, entry, path, here, o->n_states, o->steps, extra) : s;
    drop_copies(o, here);
    return s;
}

static dtr_status load(dtr_optim *o, const char *entry, const char *path,
                       const dtr_optim_extra *extra) {
    size_t count[DTR__ZERO_TYPES];
    dtr__share sh;
    DTR_TRY(share_of(o, entry, count, &sh));
    arrays here;
    DTR_TRY(make_copies(o, here));
    dtr_status s =
        dtr__share_load(&sh, entry, path, here, o->n_states, &o->steps, extra, &o->metadata);
    s = s == DTR_OK ? move_copies(o, here, false) : s;
    drop_copies(o, here);
    return s;
}

dtr_status dtr_optim_save(dtr_optim *o, const char *path) {
    DTR_HOLD_CALL_SITE;
    return save(o, "dtr_optim_save", path, NULL);
}

dtr_status dtr_optim_load(dtr_optim *o, const char *path) {
    DTR_HOLD_CALL_SITE;
    return load(o, "dtr_optim_load", path, NULL);
}

dtr_status dtr_optim_save_with(dtr_optim *o, const char *path, dtr_bytes own) {
    DTR_HOLD_CALL_SITE;
    dtr_optim_extra extra = DTR_OPTIM_EXTRA_INIT;
    extra.own = &own;
    return save(o, "dtr_optim_save_with", path, &extra);
}

dtr_status dtr_optim_load_with(dtr_optim *o, const char *path, dtr_bytes *own) {
    DTR_HOLD_CALL_SITE;
    dtr_optim_extra extra = DTR_OPTIM_EXTRA_INIT;
    DTR_REQUIRE(own != NULL, NULL, DTR_ERR_ARG, "dtr_optim_load_with: own is NULL");
    extra.own = own;
    return load(o, "dtr_optim_load_with", path, &extra);
}

dtr_status dtr_optim_save_extra(dtr_optim *o, const char *path, const dtr_optim_extra *extra) {
    DTR_HOLD_CALL_SITE;
    return save(o, "dtr_optim_save_extra", path, extra);
}

dtr_status dtr_optim_load_extra(dtr_optim *o, const char *path, const dtr_optim_extra *extra) {
    DTR_HOLD_CALL_SITE;
    return load(o, "dtr_optim_load_extra", path, extra);
}

const char *dtr_optim_metadata(const dtr_optim *o, const char *key) {
    if (dtr__optim_check(o, "dtr_optim_metadata") == DTR_OK && key != NULL) {
        for (size_t k = 0; k < o->metadata.n; k++) {
            if (strcmp(o->metadata.pairs[k].key, key) == 0) {
                return o->metadata.pairs[k].value;
            }
        }
    }
    return NULL;
}

const char *dtr_optim_metadata_key(const dtr_optim *o, size_t i) {
    return dtr__optim_check(o, "dtr_optim_metadata_key") == DTR_OK && i < o->metadata.n
               ? o->metadata.pairs[i].key
               : NULL;
}
