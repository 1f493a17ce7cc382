/* The newest steps of training: how often they end, and how much of their communication is waited
 * for. */
#include "base/clock.h"
#include "recorder/recording.h"

void dtr__rec_step_add(dtr_world *world, uint64_t steps, double comm_s, double exposed_s) {
    dtr__rec_header *h = dtr__recorder_header(world);
    const uint64_t number = atomic_fetch_add_explicit(&h->last_step, 1, memory_order_relaxed) + 1;
    dtr__rec_step *s = &h->step[number % DTR__RECORDING_STEPS];
    atomic_store_explicit(&s->begun, number, memory_order_relaxed);
    atomic_store_explicit(&s->steps, steps, memory_order_release);
    atomic_store_explicit(&s->t, dtr__stamp_ns(), memory_order_release);
    atomic_store_explicit(&s->comm_ns, (int64_t)(1e9 * comm_s), memory_order_release);
    atomic_store_explicit(&s->exposed_ns, (int64_t)(1e9 * exposed_s), memory_order_release);
    atomic_store_explicit(&s->done, number, memory_order_release);
}

static bool is_whole(const dtr__rec_step *s, uint64_t number) {
    return atomic_load(&s->done) == number && atomic_load(&s->begun) == number &&
           atomic_load(&s->steps) <= 1 && dtr__rec_is_time(atomic_load(&s->t)) &&
           dtr__rec_is_time(atomic_load(&s->comm_ns)) &&
           dtr__rec_is_time(atomic_load(&s->exposed_ns));
}

size_t dtr__recording_steps(const dtr__recording *r,
                            const dtr__rec_step *step[DTR__RECORDING_STEPS]) {
    const uint64_t last = atomic_load(&r->head.last_step);
    size_t n = 0;
    for (uint64_t back = DTR__RECORDING_STEPS; back > 0; back--) {
        const uint64_t number = last - back + 1;
        const dtr__rec_step *s = &r->head.step[number % DTR__RECORDING_STEPS];
        if (back <= last && is_whole(s, number)) {
            step[n++] = s;
        }
    }
    return n;
}
