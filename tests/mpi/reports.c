/* Who is named when a limit has passed, by ranks that are nodes of their own and hear of each other
 * rarely (reliability: CP2). */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <dtr/work.h>

#include "base/clock.h"
#include "control/control_internal.h"
#include "harness.h"
#include "tell.h"

/* Until the report of a rank says what it did after that. */
static void await_report(int rank, int64_t since_ns) {
    dtr__rank_report d;
    while (!(dtr__control_report_of(th_world(), rank, &d) && d.seen_ns > since_ns)) {
        th_sleep(0.01);
    }
}

/* A rank of the second node comes after it has been reported to be missing, the last rank never
 * comes: it alone is named. */
START_TEST(CP2_who_has_come_is_not_named) {
    int late = 1;
    const int never = th_size() - 1;
    char name[2][64];
    float x = 1;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_F32);
    dtr_work *w = NULL;
    dtr_error e = DTR_ERROR_INIT;
    while (th_world()->node_of[late] == th_world()->node_of[0]) {
        late++;
    }
    th_good_allreduce(th_group());
    th_barrier();
    if (th_rank() == 0) {
        TH_IS(dtr_allreduce(th_group(), b, b, DTR_SUM, NULL, &w), DTR_OK);
        await_report(late, dtr__now_ns());
        tell(late);
        hear(late);
        TH_IS(dtr_work_wait(w, 0.05), DTR_ERR_TIMEOUT);
        dtr_last_error(&e);
        snprintf(name[0], sizeof name[0], "rank %d (host", late);
        snprintf(name[1], sizeof name[1], "rank %d (host", never);
        TH_CHECK(strstr(e.message, name[0]) == NULL, "it has come: %s", e.message);
        TH_CHECK(strstr(e.message, name[1]) != NULL, "it has not: %s", e.message);
    } else if (th_rank() != never) {
        if (th_rank() == late) {
            hear(0);
        }
        TH_IS(dtr_allreduce(th_group(), b, b, DTR_SUM, NULL, &w), DTR_OK);
        if (th_rank() == late) {
            tell(0);
        }
        TH_CHECK(dtr_work_wait(w, 30) < 0, "it ended well");
    }
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* Pages of a board that any rank of the node has touched. */
static size_t pages_taken(const dtr__board *b) {
    enum { PAGE = 4096 };
    const size_t nbytes = dtr__board_bytes(th_size(), th_world()->node_count);
    const uintptr_t from = ((uintptr_t)b + PAGE - 1) / PAGE * PAGE;
    const size_t n = ((uintptr_t)b + nbytes - from) / PAGE;
    unsigned char in[64] = { 0 };
    size_t taken = 0;
    TH_CHECK(n <= sizeof in && mincore((void *)from, n * PAGE, in) == 0, "%zu pages", n);
    for (size_t i = 0; i < n && i < sizeof in; i++) {
        taken += in[i] & 1;
    }
    return taken;
}

/* Of a node one rank has connections. The others have room for reports and no memory in it, also
 * once they have read all that there is. */
START_TEST(CP2_one_board_of_a_node) {
    const dtr_world *w = th_world();
    const dtr__control *c = w->control.plane;
    for (int r = 0; r < th_size(); r++) {
        if (w->node_of[r] != w->node) {
            await_report(r, 0);
        }
    }
    th_barrier();
    TH_CHECK((pages_taken(c->board) > 1) == (w->local_rank == 0),
             "local rank %d has %zu pages of reports", w->local_rank, pages_taken(c->board));
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    th_add(th_case(s, "memory", 60), CP2_one_board_of_a_node, 7, 0);
    th_add(th_case(s, "reports", 60), CP2_who_has_come_is_not_named, 3, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "reports", make);
}
