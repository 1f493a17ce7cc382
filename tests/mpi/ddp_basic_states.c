/* DDP: the table of states (T57, ST1, ER6). */

#include "ddp_models.h"
#include "parts.h"

enum {
    CALL_FORWARD_BEGIN,
    CALL_FORWARD_END,
    CALL_READY,
    CALL_END,
    CALL_CLEAR,
    CALL_EQUAL,
    CALL_STATIC,
    CALLS
};
static const char *const call_names[] = { "forward_begin",   "forward_end", "grad_ready",
                                          "backward_end",    "grad_clear",  "check_equal",
                                          "set_static_graph" };
enum { IN_IDLE, IN_FORWARD, IN_ARMED, IN_LOCAL, IN_REDUCING, IN_EVAL_IDLE, STATES };
static const char *const state_names[] = { "IDLE",  "FORWARD",  "ARMED",
                                           "LOCAL", "REDUCING", "IDLE, evaluating" };
/* y: legal; n: DTR_ERR_STATE; -: legal, but leads elsewhere than this test wants to go. */
static const char *const table[STATES] = {
    [IN_IDLE] = "-n--yyn",  [IN_FORWARD] = "y-nnynn",  [IN_ARMED] = "-n--ynn",
    [IN_LOCAL] = "-n--ynn", [IN_REDUCING] = "nn--nnn", [IN_EVAL_IDLE] = "-nnnyyn",
};

static dtr_status make_call(dtr_ddp *ddp, int call) {
    switch (call) {
    case CALL_FORWARD_BEGIN:
        return dtr_ddp_forward_begin(ddp);
    case CALL_FORWARD_END:
        return dtr_ddp_forward_end(ddp, NULL, 0);
    case CALL_READY:
        return dtr_ddp_grad_ready(ddp, 0, NULL);
    case CALL_END:
        return dtr_ddp_backward_end(ddp, NULL);
    case CALL_CLEAR:
        return dtr_ddp_grad_clear(ddp, 2);
    case CALL_EQUAL:
        return dtr_ddp_check_equal(ddp);
    default:
        return dtr_ddp_set_static_graph(ddp);
    }
}

static void go_to(dtr_ddp *ddp, const synth *s, int state) {
    TH_IS(dtr_ddp_set_sync(ddp, state != IN_LOCAL), DTR_OK);
    TH_IS(dtr_ddp_set_eval(ddp, state == IN_EVAL_IDLE), DTR_OK);
    if (state == IN_FORWARD || state == IN_ARMED || state == IN_LOCAL) {
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    }
    if (state == IN_ARMED || state == IN_LOCAL) {
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    }
    if (state == IN_REDUCING) {
        synth_write(ddp, s, 2, 4, false);
        TH_IS(dtr_ddp_grad_ready(ddp, 2, NULL), DTR_OK);
    }
}

/* The open iteration can be finished with right values. */
static void go_on(dtr_ddp *ddp, const synth *s, int state) {
    if (state == IN_FORWARD) {
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    }
    TH_IS(dtr_ddp_set_eval(ddp, false), DTR_OK);
    for (size_t i = state == IN_REDUCING ? 2 : 3; i-- > 0;) {
        synth_write(ddp, s, i, 4, false);
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    if (state != IN_LOCAL) {
        synth_check_all(ddp, s, 4, th_size());
    }
    TH_IS(dtr_ddp_set_sync(ddp, true), DTR_OK);
}

/* T57, ST1, F10, F12, ER6. */
START_TEST(states) {
    synth s = synth_equal(3, 20);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    synth_good_step(ddp, &s, 0);
    for (int state = 0; state < STATES; state++) {
        for (int call = 0; call < CALLS; call++) {
            char want = table[state][call];
            if (want == '-') {
                continue;
            }
            go_to(ddp, &s, state);
            dtr_status got = make_call(ddp, call);
            TH_CHECK(got == (want == 'y' ? DTR_OK : DTR_ERR_STATE), "%s in %s gave %s",
                     call_names[call], state_names[state], dtr_status_name(got));
            go_on(ddp, &s, state);
            TH_AGREE();
        }
    }
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* F5: forward_begin in an open backward names what is missing; the iteration can be finished. */
START_TEST(forward_in_backward) {
    synth s = synth_equal(3, 20);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    synth_write(ddp, &s, 1, 0, false);
    TH_IS(dtr_ddp_grad_ready(ddp, 1, NULL), DTR_OK);
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_ERR_STATE);
    TH_MESSAGE("'p0' (0), 'p2' (2)");
    for (size_t i = 0; i < 3; i += 2) {
        synth_write(ddp, &s, i, 0, false);
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_ERR_STATE);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    synth_check_all(ddp, &s, 0, th_size());
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

void ddp_basic_states(TCase *tc) {
    th_add(tc, states, 0, 0);
    th_add(tc, forward_in_backward, 0, 0);
}
