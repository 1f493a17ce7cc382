/* Streams and pinned memory of the stage backend, kept for the life of a group. */
#include <stdlib.h>
#include <time.h>

#include "backends/stage/stage.h"
#include "core/team.h"
#include "memory/arena.h"
#include "stage_internal.h"
#include "topology/bind.h"

enum {
    LEAST = 4096,       /* bytes of a slot, a page */
    CLOSE_WAITS = 1000, /* of a millisecond, for copies of failed operations */
};

/* ---- slots ---- */

static void free_slot(dtr__stage *s, dtr__slot *slot) {
    void *events[] = { slot->dependency, slot->loaded, slot->stored };
    for (int i = 0; i < 3; i++) {
        if (events[i] != NULL) {
            (void)s->ops->event_free(s->device, events[i]);
        }
    }
    if (slot->shared) {
        (void)s->ops->unpin(s->device, slot->memory);
        dtr__arena_free(s->world, slot->memory);
    } else if (slot->memory != NULL) {
        (void)s->ops->pinned_free(s->device, slot->memory);
    }
    free(slot);
}

/* Memory of the node, pinned: the device copies to and from where the CPU backends work, and
 * these need no staging between. */
static bool take_shared(const dtr__stage *s, dtr__slot *slot) {
    void *memory =
        dtr__arena_usable(s->world) ? dtr__arena_alloc(s->world, slot->cap, LEAST) : NULL;
    if (memory != NULL && s->ops->pin(s->device, memory, slot->cap) != 0) {
        dtr__arena_free(s->world, memory);
        memory = NULL;
    }
    slot->memory = memory;
    slot->shared = memory != NULL;
    return slot->shared;
}

static dtr_status fill_slot(dtr__stage *s, dtr__slot *slot) {
    DTR_CUDA_TRY(s->ops->event_new(s->device, false, &slot->dependency), DTR_ERR_CUDA);
    DTR_CUDA_TRY(s->ops->event_new(s->device, false, &slot->loaded), DTR_ERR_CUDA);
    DTR_CUDA_TRY(s->ops->event_new(s->device, false, &slot->stored), DTR_ERR_CUDA);
    void *memory = NULL;
    if (take_shared(s, slot)) {
        return DTR_OK;
    }
    DTR_CUDA_TRY(s->ops->pinned_alloc(s->device, slot->cap, &memory), DTR_ERR_NOMEM);
    slot->memory = memory;
    return DTR_OK;
}

/* In steps of a quarter at most, so that few sizes are made and slots serve again. */
static size_t size_class(size_t nbytes) {
    size_t step = LEAST;
    while (step < nbytes / 8) {
        step *= 2;
    }
    return (nbytes / step + 1) * step;
}

/* The smallest that is large enough, out of the pool; NULL: none. */
static dtr__slot *take_idle(dtr__stage *s, size_t nbytes) {
    dtr__slot **best = NULL;
    pthread_mutex_lock(&s->lock);
    for (dtr__slot **at = &s->idle; *at != NULL; at = &(*at)->next) {
        bool fits = (*at)->cap >= nbytes;
        best = fits && (best == NULL || (*at)->cap < (*best)->cap) ? at : best;
    }
    dtr__slot *found = best != NULL ? *best : NULL;
    if (found != NULL) {
        *best = found->next;
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

/* Those that are too small stay: CUDA waits for all devices when pinned memory is freed, and with
 * them for other ranks, who may wait for what is being issued here. */
dtr_status dtr__stage_take(dtr__stage *s, size_t nbytes, dtr__slot **slot) {
    dtr__slot *found = take_idle(s, nbytes);
    if (found == NULL) {
        found = calloc(1, sizeof *found);
        DTR_REQUIRE(found != NULL, NULL, DTR_ERR_NOMEM, "out of memory for %zu bytes", nbytes);
        found->cap = size_class(nbytes);
        dtr_status status = fill_slot(s, found);
        if (status < 0) {
            free_slot(s, found);
            return status;
        }
    }
    found->state = DTR__SLOT_FREE;
    found->part = NULL;
    *slot = found;
    return DTR_OK;
}

/* What an operation that is cut takes at the most, of each chunk both sides. */
dtr_status dtr__stage_ahead(dtr_group *g, void *state, int device) {
    const size_t chunk = (size_t)dtr__opt_number(&g->world->options, DTR__OPT_STAGE_CHUNK);
    dtr__stage *s = NULL;
    dtr__slot *slot[DTR__STAGE_SLOTS];
    int n = 0;
    dtr_status status = dtr__stage_of(state, device, &s);
    while (status == DTR_OK && n < DTR__STAGE_SLOTS) {
        status = dtr__stage_take(s, DTR__STAGE_FACTOR + 2 * chunk, &slot[n]);
        n += status == DTR_OK;
    }
    while (n > 0) {
        dtr__stage_give(s, slot[--n], true);
    }
    return status;
}

void dtr__stage_give(dtr__stage *s, dtr__slot *slot, bool clean) {
    pthread_mutex_lock(&s->lock);
    dtr__slot **list = clean ? &s->idle : &s->lost;
    slot->next = *list;
    *list = slot;
    pthread_mutex_unlock(&s->lock);
}

/* ---- stages ---- */

static void free_stage(dtr__stage *s) {
    if (s->load != NULL) {
        (void)s->ops->stream_free(s->device, s->load);
    }
    if (s->store != NULL) {
        (void)s->ops->stream_free(s->device, s->store);
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
}

dtr_status dtr__stage_open(dtr_group *g, void **state) {
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    dtr__stages *stages = calloc(1, sizeof *stages);
    DTR_REQUIRE(stages != NULL, &ctx, DTR_ERR_NOMEM, "no memory for the devices of group '%s'",
                g->name);
    stages->world = g->world;
    pthread_mutex_init(&stages->lock, NULL);
    *state = stages;
    return DTR_OK;
}

static dtr_status make_stage(dtr_world *world, int device, dtr__stage **stage) {
    dtr__stage *s = calloc(1, sizeof *s);
    DTR_REQUIRE(s != NULL, NULL, DTR_ERR_NOMEM, "out of memory for device cuda:%d", device);
    s->world = world;
    s->device = device;
    s->ops = dtr__cuda_get()->ops;
    pthread_mutex_init(&s->lock, NULL);
    int code = s->ops->stream_new(device, true, &s->load);
    code = code != 0 ? code : s->ops->stream_new(device, true, &s->store);
    if (code != 0) {
        free_stage(s);
        DTR_CUDA_TRY(code, DTR_ERR_CUDA);
    }
    *stage = s;
    return DTR_OK;
}

dtr_status dtr__stage_of(dtr__stages *stages, int device, dtr__stage **stage) {
    dtr_status status = DTR_OK;
    pthread_mutex_lock(&stages->lock);
    dtr__stage *s = stages->first;
    while (s != NULL && s->device != device) {
        s = s->next;
    }
    if (s == NULL && (status = make_stage(stages->world, device, &s)) == DTR_OK) {
        dtr__bind_check_gpu(stages->world, device);
        s->next = stages->first;
        stages->first = s;
    }
    pthread_mutex_unlock(&stages->lock);
    *stage = s;
    return status;
}

/* False: a copy that an operation left behind is still under way. */
static bool streams_ended(dtr__stage *s) {
    int busy = s->ops->not_ready;
    struct timespec nap = { 0, 1000000 };
    for (int i = 0; i < CLOSE_WAITS; i++) {
        if (s->ops->stream_query(s->device, s->load) != busy &&
            s->ops->stream_query(s->device, s->store) != busy) {
            return true;
        }
        nanosleep(&nap, NULL);
    }
    return false;
}

static void free_slots(dtr__stage *s, dtr__slot *first) {
    for (dtr__slot *slot = first, *next; slot != NULL; slot = next) {
        next = slot->next;
        free_slot(s, slot);
    }
}

void dtr__stage_close(dtr_group *g, void *state) {
    dtr__stages *stages = state;
    for (dtr__stage *s = stages->first, *next; s != NULL; s = next) {
        next = s->next;
        if (s->lost != NULL && !streams_ended(s)) {
            DTR_WARN(g->world,
                     "group '%s': copies of failed operations on cuda:%d do not end; their pinned "
                     "memory stays",
                     g->name, s->device);
            s->lost = NULL;
        }
        free_slots(s, s->idle);
        free_slots(s, s->lost);
        free_stage(s);
    }
    pthread_mutex_destroy(&stages->lock);
    free(stages);
}
