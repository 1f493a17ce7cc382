/* Messages between ranks, one of which is stopped while a large one of it is on its way. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../collectives/agreement/mailbox.h"
#include "harness.h"

enum { LARGE = 4 << 20, TAG = 0x4d0f };

static void send_bytes(dtr__control_message **out, size_t nbytes, char value) {
    char *data = malloc(nbytes);
    ck_assert_ptr_nonnull(data);
    memset(data, value, nbytes);
    TH_IS(dtr__mailbox_send(th_world(), out, 0, TAG, data, nbytes, NULL, 0), DTR_OK);
    free(data);
}

static void await_sent(dtr__control_message **out) {
    while (*out != NULL) {
        dtr__mailbox_reap(out);
    }
}

static void is_message(const char *got, size_t nbytes, size_t want, char value) {
    TH_CHECK(nbytes == want && got[0] == value && got[nbytes - 1] == value,
             "%zu bytes of %d, not %zu of %d", nbytes, got[0], want, value);
}

/* What rank 2 sends arrives meanwhile; the others come in their order once rank 1 goes on, which
 * may stop only after it was told to. */
static void receive_all(pid_t stopped) {
    dtr__arriving *in = NULL;
    int n = 0, from_1 = 0;
    for (bool from_2 = false; n < 3;) {
        void *message = NULL;
        size_t nbytes = 0;
        int from = -1;
        TH_IS(dtr__mailbox_receive(th_world(), &in, TAG, &message, &nbytes, &from), DTR_OK);
        if (from_2) {
            kill(stopped, SIGCONT);
        }
        if (message == NULL) {
            continue;
        }
        n++;
        if (from == 2) {
            from_2 = true;
            is_message(message, nbytes, 8, 2);
        } else if (from_1++ == 0) {
            is_message(message, nbytes, LARGE, 1);
        } else {
            is_message(message, nbytes, 8, 3);
        }
        free(message);
    }
    TH_CHECK(in == NULL, "something is left");
    dtr__mailbox_close(&in);
}

START_TEST(others_arrive_while_a_sender_is_stopped) {
    dtr__control_message *out = NULL;
    uint64_t pids[3];
    th_gather_u64((uint64_t)getpid(), pids);
    th_barrier();
    if (th_rank() == 1) {
        send_bytes(&out, LARGE, 1);
        send_bytes(&out, 8, 3);
        raise(SIGSTOP);
    } else if (th_rank() == 2) {
        th_sleep(0.3); /* rank 1 has sent most likely; nothing depends on it */
        send_bytes(&out, 8, 2);
    } else {
        receive_all((pid_t)pids[1]);
    }
    await_sent(&out);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "mailbox", 60);
    th_add(tc, others_arrive_while_a_sender_is_stopped, 3, 3);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "mailbox", make);
}
