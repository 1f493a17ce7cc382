/* Whether operations under way use memory of a device: what dtr_free asks. */
#include "core/work.h"
#include "engine/engine.h"
#include "group/device_select.h"
#include "group/groups.h"

static bool overlaps(const void *block, size_t nbytes, const void *data, size_t n) {
    uintptr_t a = (uintptr_t)block, b = (uintptr_t)data;
    return data != NULL && a < b + (n > 0 ? n : 1) && b < a + (nbytes > 0 ? nbytes : 1);
}

bool dtr__call_uses(const dtr__call *c, const void *block, size_t nbytes) {
    size_t size = dtr_dtype_size(c->dtype);
    for (size_t i = 0; c->kind == DTR__K_BATCH && i < c->n_batch; i++) {
        const dtr_buffer *b = &c->batch[i].buf;
        if (overlaps(block, nbytes, b->data, b->count * dtr_dtype_size(b->dtype))) {
            return true;
        }
    }
    return overlaps(block, nbytes, c->in, c->in_count * size) ||
           overlaps(block, nbytes, c->out, c->out_count * size) ||
           overlaps(block, nbytes, c->premul_device, size);
}

/* The members of a scope are in no list of the group. Nothing of one that is being recorded, by
 * whichever thread, has begun. */
static bool work_uses(const dtr_work *w, const void *block, size_t nbytes) {
    if (atomic_load_explicit(&w->scope.recording, memory_order_acquire) == DTR__RECORDING_SCOPE ||
        w->call.device.type == DTR_CPU) {
        return false;
    }
    if (w->call.kind != DTR__K_COALESCED && w->call.kind != DTR__K_COALESCED_P2P) {
        return dtr__call_uses(&w->call, block, nbytes);
    }
    return w->composite != NULL && w->composite->uses(w, block, nbytes);
}

static bool group_uses(dtr_group *g, const void *block, size_t nbytes) {
    bool used = false;
    pthread_mutex_lock(&g->engine->queue_lock);
    for (const dtr_work *w = g->engine->works.head; w != NULL && !used; w = w->next) {
        used = work_uses(w, block, nbytes);
    }
    pthread_mutex_unlock(&g->engine->queue_lock);
    return used;
}

bool dtr__device_memory_used(dtr_world *world, const void *block, size_t nbytes) {
    dtr__groups *gs = world->groups;
    bool used = false;
    if (gs == NULL) {
        return false;
    }
    pthread_mutex_lock(&gs->lock);
    for (dtr_group *g = gs->first; g != NULL && !used; g = g->next) {
        used = group_uses(g, block, nbytes);
    }
    pthread_mutex_unlock(&gs->lock);
    return used;
}
