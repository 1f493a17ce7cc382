/* Faults in which a rank is stopped until the others have given up, and goes on. */
#include <signal.h>
#include <stdio.h>

#include "fault.h"

static void stop(void) {
    mark_fault();
    raise(SIGSTOP);
}

/* The judge has asked dtr-doctor by then. */
static void await_others_and_wake(void) {
    await_others();
    if (rank == 0) {
        await_file("looked");
        wake_victim();
    }
}

/* FI3, FT2, CP1, N4, N19 */
void stopped(void) {
    go_ahead();
    if (rank == victim) {
        stop();
        NOTE("allreduce", call_asked(LIMIT_S));
        return;
    }
    NOTE("allreduce", call_asked(LIMIT_S));
    await_others_and_wake();
}

/* ---- EA3, EA4: what the victim needs of the others came before they gave up, in a call that it
 * has made before, which takes the fast path, and in one that it was in when it was stopped ---- */

enum { FEW = 8, TIMES = 4, TAG = 3, ALLREDUCE = 0, SEND, RECEIVE, WAYS };
static const char *const ways[WAYS] = { "allreduce", "send", "receive" };

static dtr_status same_allreduce(dtr_group *g) {
    dtr_buffer b = buffer(data, FEW);
    return dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL);
}

static dtr_status same_send(dtr_group *g) {
    dtr_work *w = NULL;
    dtr_status s = dtr_send(g, buffer(data, FEW), 0, TAG, NULL, &w);
    return wait_and_release(s, &w, -1);
}

/* A group for each way; what is sent to the victim is sent once it is stopped. */
void stopped_again(void) {
    static float in[FEW], own[WAYS][FEW];
    dtr_coll_options o = { .struct_size = sizeof o, .label = "grad.3", .timeout_s = LIMIT_S };
    dtr_group *g[WAYS] = { NULL };
    dtr_work *w[WAYS] = { NULL }, *got = NULL;
    char name[32];
    for (int i = 0; i < WAYS; i++) {
        NOTE("before", dtr_group_split(group, 0, 0, NULL, &g[i]));
    }
    for (int i = 0; i < TIMES; i++) {
        NOTE("before", same_allreduce(g[ALLREDUCE]));
        if (rank == victim) {
            NOTE("before", same_send(g[SEND]));
        } else if (rank == 0) {
            NOTE("before", dtr_recv(g[SEND], buffer(in, FEW), victim, TAG, NULL, NULL));
        }
    }
    if (rank == victim) {
        NOTE("before", dtr_recv(g[RECEIVE], buffer(in, FEW), 0, TAG, NULL, &got));
    }
    go_ahead();
    if (rank == victim) {
        stop();
        NOTE("allreduce", same_allreduce(g[ALLREDUCE]));
        NOTE("send", same_send(g[SEND]));
        NOTE("receive", wait_and_release(DTR_OK, &got, -1));
        return;
    }
    snprintf(name, sizeof name, "fault%d", victim);
    await_file(name);
    nap(0.2);
    if (rank == 0) {
        NOTE("before", dtr_send(g[RECEIVE], buffer(data, FEW), victim, TAG, NULL, NULL));
    }
    const double begun = now();
    for (int i = 0; i < WAYS; i++) {
        dtr_buffer b = buffer(own[i], FEW);
        (void)dtr_allreduce(g[i], b, b, DTR_MAX, &o, &w[i]);
    }
    for (int i = 0; i < WAYS; i++) {
        note_since(ways[i], begun, wait_and_release(DTR_OK, &w[i], -1));
    }
    await_others_and_wake();
}
