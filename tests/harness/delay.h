/* Options of a module with delayed parameters. */
#ifndef DTR_TEST_DELAY_H
#define DTR_TEST_DELAY_H

#include <dtr/ddp.h>

static inline dtr_ddp_options delay(const size_t *list, size_t n, size_t trigger) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.delayed = list;
    o.n_delayed = n;
    o.delayed_trigger = trigger;
    o.has_delayed_trigger = true;
    return o;
}

#endif /* DTR_TEST_DELAY_H */
