/* Who is named when a limit has passed, by ranks that are nodes of their own and hear of each other
 * rarely (reliability: CP2). */
#include <string.h>

#include <dtr/work.h>

#include "base/clock.h"
#include "control/control.h"
#include "harness.h"
#include "tell.h"

/* Until the report of a rank says what it did after that. */
static void await_report(int rank, int64_t since_ns) {
    dtr__rank_report d;
    while (!(dtr__control_report_of(th_world(), rank, &d) && d.seen_ns > since_ns)) {
        th_sleep(0.01);
    }
}

/* A rank of the second node comes after it has been reported to be missing, the last rank never comes: it alone is
 * named. */
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

static void make(Suite *s) {
    th_add(th_case(s, "reports", 60), CP2_who_has_come_is_not_named, 3, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "reports", make);
}
