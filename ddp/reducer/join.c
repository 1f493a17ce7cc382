/* Uneven inputs. Between join_begin and join_end every forward pass starts with a header that all
 * ranks gather; a rank that has run out of inputs goes on reading headers and takes part in every
 * collective of the others' steps with zeros, until nobody is left.
 *
 * Modules of one world and the same members that are joined together share their headers: the first
 * of them leads. */
#include <stdlib.h>

#include "core/call_site.h"
#include "core/team.h"
#include "engine/engine.h"
#include "reducer_internal.h"

/* What a rank says at the beginning of a step; gathered on the leader's group. */
typedef struct header {
    uint64_t active, stop, synced, buffers, module;
} header;

enum { SHADOWS_WARNED = 1000 };

static dtr__ddp_join *join_of(const dtr_ddp *ddp) {
    return &ddp->reducer->join;
}

static bool enabled(const dtr_ddp *ddp) {
    return join_of(ddp)->leader != NULL;
}

bool dtr__ddp_joined(const dtr_ddp *ddp) {
    return enabled(ddp);
}

/* ---- beginning ---- */

static bool leads_same_members(const dtr__destroy_listener *t, const void *arg) {
    const dtr_ddp *mine = arg;
    if (t->on_destroy != mine->listener.on_destroy) {
        return false;
    }
    const dtr_ddp *other = (const dtr_ddp *)((const char *)t - offsetof(dtr_ddp, listener));
    return join_of(other)->leader == other && !join_of(other)->over && other->size == mine->size &&
           memcmp(other->group->world_ranks, mine->group->world_ranks,
                  (size_t)mine->size * sizeof mine->group->world_ranks[0]) == 0;
}

static dtr_status add_module(dtr_ddp *leader, dtr_ddp *ddp) {
    dtr_ddp **list =
        realloc(join_of(leader)->modules, (join_of(leader)->n_modules + 1) * sizeof(dtr_ddp *));
    DTR_REQUIRE(list != NULL, NULL, DTR_ERR_NOMEM, "no memory to join another module");
    join_of(leader)->modules = list;
    list[join_of(leader)->n_modules++] = ddp;
    return DTR_OK;
}

static dtr_status begin(dtr_ddp *ddp, const char *entry, const dtr_join_options *o) {
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    DTR_REQUIRE(!join_of(ddp)->begun, &ctx, DTR_ERR_STATE, "%s: a join has begun already", entry);
    DTR_REQUIRE(atomic_load(&ddp->state) == DTR__DDP_IDLE, &ctx, DTR_ERR_STATE,
                "%s: %s; begin between iterations", entry,
                dtr__ddp_state_name(atomic_load(&ddp->state)));
    DTR_TRY(dtr__ddp_refuse_sharded(ddp, entry));
    DTR_REQUIRE(ddp->reducer->buffers.hook == NULL || ddp->reducer->buffers.when == DTR_PRE_FORWARD,
                &ctx, DTR_ERR_STATE,
                "%s: a buffer hook runs after forward, where ranks that have joined cannot follow",
                entry);
    DTR_REQUIRE(!ddp->set.static_graph || !ddp->set.unused_asked || ddp->reducer->learned, &ctx,
                DTR_ERR_STATE,
                "%s: with static_graph and find_unused a join may begin only after the first "
                "iteration",
                entry);
    if (!o->disable) {
        dtr__destroy_listener *t = dtr__on_destroy_find(ddp->world, leads_same_members, ddp);
        dtr_ddp *leader = t != NULL ? (dtr_ddp *)((char *)t - offsetof(dtr_ddp, listener)) : ddp;
        DTR_TRY(add_module(leader, ddp));
        join_of(ddp)->leader = leader;
        join_of(ddp)->over = false;
        join_of(ddp)->headers = 0;
        join_of(ddp)->source = ddp->size - 1;
    }
    join_of(ddp)->begun = true;
    join_of(ddp)->by_active = o->divide_by_active;
    join_of(ddp)->stop_early = o->stop_early;
    join_of(ddp)->shadows = 0;
    return DTR_OK;
}

static dtr_status ddp_join_begin(dtr_ddp *ddp, const dtr_join_options *options) {
    static const char entry[] = "dtr_ddp_join_begin";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    dtr_join_options o;
    dtr_status s = dtr__options_copy(options, &o, sizeof o, "dtr_join_options");
    if (s == DTR_OK) {
        pthread_mutex_lock(&ddp->lock);
        s = begin(ddp, entry, &o);
        pthread_mutex_unlock(&ddp->lock);
    }
    return dtr__ddp_result(ddp, s);
}

dtr_status dtr_ddp_join_begin(dtr_ddp *ddp, const dtr_join_options *options) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_ddp_join_begin", ddp_join_begin(ddp, options));
}

/* ---- headers ---- */

static uint64_t module_index(const dtr_ddp *ddp) {
    const dtr_ddp *leader = join_of(ddp)->leader;
    uint64_t k = 0;
    while (join_of(leader)->modules[k] != ddp) {
        k++;
    }
    return k;
}

/* What the headers of one step say together. */
typedef struct step {
    int active;       /* number of ranks */
    int source;       /* the highest of them: its buffers count */
    int first_joined; /* lowest rank that is not active, -1: none */
    bool stop;
    header what; /* of the active ranks */
} step;

static dtr_status read_headers(const dtr_ddp *leader, const header *all, step *out) {
    *out = (step){ .source = -1, .first_joined = -1 };
    int first = -1;
    for (int r = 0; r < leader->size; r++) {
        out->stop = out->stop || all[r].stop != 0;
        if (all[r].active == 0) {
            out->first_joined = out->first_joined < 0 ? r : out->first_joined;
            continue;
        }
        first = first < 0 ? r : first;
        DTR_REQUIRE(all[r].module == all[first].module, NULL, DTR_ERR_MISMATCH,
                    "rank %d begins a step of joined module %llu, rank %d of module %llu", first,
                    (unsigned long long)all[first].module, r, (unsigned long long)all[r].module);
        DTR_REQUIRE(all[r].synced == all[first].synced, NULL, DTR_ERR_MISMATCH,
                    "rank %d begins a step %s sync, rank %d %s: set the flag alike on all ranks",
                    first, all[first].synced ? "with" : "without", r,
                    all[r].synced ? "with" : "without");
        out->active++;
        out->source = r;
        out->what = all[r];
    }
    DTR_REQUIRE(out->active == 0 || out->what.module < join_of(leader)->n_modules, NULL,
                DTR_ERR_MISMATCH, "a step of joined module %llu, but only %zu have begun a join",
                (unsigned long long)out->what.module, join_of(leader)->n_modules);
    return DTR_OK;
}

static dtr_status exchange(dtr_ddp *leader, const header *mine, step *out) {
    header *all = malloc((size_t)leader->size * sizeof *all);
    if (all == NULL) {
        dtr_status s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for the headers of a join");
        dtr__group_break(leader->group, s);
        return s;
    }
    dtr_status s = dtr__ddp_gather(leader, mine, all, sizeof *all, "ddp join", DTR__PART_JOIN);
    join_of(leader)->headers++;
    if (s == DTR_OK) {
        s = read_headers(leader, all, out);
    }
    if (s == DTR_OK && out->active > 0) {
        join_of(leader)->source = out->source;
    }
    free(all);
    return s;
}

/* The whole join ends on this rank. */
static void end_join(dtr_ddp *leader) {
    join_of(leader)->over = true;
    for (size_t k = 0; k < join_of(leader)->n_modules; k++) {
        dtr_ddp *m = join_of(leader)->modules[k];
        join_of(m)->begun = false;
        join_of(m)->leader = NULL;
    }
    free(join_of(leader)->modules);
    join_of(leader)->modules = NULL;
    join_of(leader)->n_modules = 0;
}

static dtr_status stopped(dtr_ddp *leader, const step *st) {
    int rank = st->first_joined, size = leader->size;
    end_join(leader);
    return DTR_FAIL(NULL, DTR_ERR_STATE,
                    "rank %d has no more inputs and stop_early is set: the join ends on all %d "
                    "ranks",
                    rank, size);
}

dtr_status dtr__ddp_join_header(dtr_ddp *ddp, bool *broken) {
    *broken = false;
    ddp->it.divisor = 0;
    ddp->it.buffer_source = 0;
    if (!enabled(ddp)) {
        return DTR_OK;
    }
    header mine = {
        .active = 1,
        .synced = ddp->it.sync,
        .buffers = dtr__ddp_buffers_due(ddp),
        .module = module_index(ddp),
    };
    step st = { 0 };
    dtr_status s = exchange(join_of(ddp)->leader, &mine, &st);
    if (s < 0) {
        *broken = true;
        return s;
    }
    if (st.stop) {
        return stopped(join_of(ddp)->leader, &st);
    }
    ddp->it.divisor = join_of(ddp)->by_active ? st.active : 0;
    ddp->it.buffer_source = st.source;
    return DTR_OK;
}

/* ---- the end ---- */

/* One step of the others, with zeros from here. */
static dtr_status shadow(dtr_ddp *ddp, const step *st) {
    bool broken;
    ddp->it.divisor = join_of(ddp)->by_active ? st->active : 0;
    ddp->it.buffer_source = st->source;
    dtr__ddp_shadow_flags(ddp, st->what.synced != 0);
    dtr_status s = DTR_OK;
    if (st->what.buffers != 0) {
        s = dtr__ddp_buffers_sync(ddp, DTR_PRE_FORWARD, &broken);
        if (broken) {
            return dtr__ddp_break(ddp, s);
        }
    }
    if (++join_of(ddp)->shadows > SHADOWS_WARNED) {
        dtr__ddp_warn(ddp, DTR__WARN_SHADOW,
                      "this rank has shadowed more than %d steps of the others after its inputs "
                      "ended: balance the inputs, or use stop_early",
                      (int)SHADOWS_WARNED);
    }
    dtr_status end = dtr__ddp_shadow_backward(ddp);
    return s < 0 ? s : end;
}

/* Shadows until all ranks have joined. The first agreed error is kept; one that broke a
 * module ends it. */
static dtr_status shadow_all(dtr_ddp *ddp) {
    dtr_ddp *leader = join_of(ddp)->leader;
    dtr__error_copy *first = NULL;
    dtr_status kept = DTR_OK;
    for (;;) {
        header mine = { .stop = join_of(ddp)->stop_early };
        step st = { 0 };
        dtr_status s = exchange(leader, &mine, &st);
        if (s < 0) {
            dtr__error_copy_free(first);
            return dtr__ddp_break(leader, s);
        }
        if (st.active == 0) {
            break;
        }
        if (st.stop) {
            dtr__error_copy_free(first);
            return dtr__ddp_failed(ddp, stopped(leader, &st));
        }
        dtr_ddp *module = join_of(leader)->modules[st.what.module];
        s = shadow(module, &st);
        if (s < 0 && kept == DTR_OK) {
            kept = s;
            first = dtr__error_save();
        }
        if (atomic_load(&module->state) == DTR__DDP_FAILED) {
            break;
        }
        atomic_store(&module->state, module == ddp ? DTR__DDP_BUSY : DTR__DDP_IDLE);
    }
    return dtr__error_put_back(first, kept);
}

/* The rank that had the last input has the values that all ranks end with. */
static dtr_status final_values(dtr_ddp *ddp, int source) {
    if (ddp->size == 1 || ddp->reducer->n_sync == 0) {
        return DTR_OK;
    }
    return dtr__ddp_send_all(ddp, ddp->reducer->sync_list, ddp->reducer->n_sync, source);
}

/* The module leaves; the last one to leave takes the join with it. */
static void leave(dtr_ddp *ddp) {
    dtr_ddp *leader = join_of(ddp)->leader;
    size_t left = 0;
    for (size_t k = 0; k < join_of(leader)->n_modules; k++) {
        if (join_of(leader)->modules[k] == ddp) {
            join_of(ddp)->begun = false;
        }
        left += join_of(leader)->modules[k]->reducer->join.begun ? 1 : 0;
    }
    if (left == 0) {
        end_join(leader);
    }
}

static dtr_status end(dtr_ddp *ddp) {
    if (!enabled(ddp)) {
        join_of(ddp)->begun = false;
        return DTR_OK;
    }
    dtr_ddp *leader = join_of(ddp)->leader;
    dtr_status s = DTR_OK;
    if (!join_of(leader)->over) {
        s = shadow_all(ddp);
        if (!enabled(ddp) || atomic_load(&ddp->state) == DTR__DDP_FAILED ||
            atomic_load(&leader->state) == DTR__DDP_FAILED) {
            return s;
        }
        join_of(leader)->over = true;
    }
    int source = join_of(leader)->source;
    leave(ddp);
    dtr_status last = final_values(ddp, source);
    if (last < 0) {
        return dtr__ddp_break(ddp, last);
    }
    return s;
}

static dtr_status ddp_join_end(dtr_ddp *ddp) {
    static const char entry[] = "dtr_ddp_join_end";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    if (!join_of(ddp)->begun) {
        return dtr__ddp_refuse(ddp, entry, "there was no dtr_ddp_join_begin");
    }
    DTR_TRY(dtr__ddp_occupy(ddp, entry, "end the join between iterations"));
    dtr_status s = end(ddp);
    int busy = DTR__DDP_BUSY;
    atomic_compare_exchange_strong(&ddp->state, &busy, DTR__DDP_IDLE);
    return s;
}

dtr_status dtr_ddp_join_end(dtr_ddp *ddp) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_ddp_join_end", ddp_join_end(ddp));
}

/* A module is destroyed: it leaves without a word. */
void dtr__ddp_join_drop(dtr_ddp *ddp) {
    if (enabled(ddp)) {
        end_join(join_of(ddp)->leader);
    }
}
