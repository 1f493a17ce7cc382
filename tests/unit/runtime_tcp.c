/* Messages over TCP (tcp/tcp.h): two ranks in one process, moved by one thread. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tcp/tcp.h"
#include "unit.h"

enum { CHANNEL = 7, LONG = 8 << 20, SHORT = 100 };

static dtr__tcp *rank[2];

static dtr__tcp *make_rank(int r, unsigned char key_byte) {
    unsigned char key[DTR__KEY_BYTES];
    dtr__tcp *t = NULL;
    ck_assert_int_eq(dtr__tcp_new(r, 2, "", "here", 60, &t), DTR_OK);
    memset(key, key_byte, sizeof key);
    dtr__tcp_set_key(t, key, dtr__proof_has_hmac());
    return t;
}

static void introduce(dtr__tcp *a, dtr__tcp *b) {
    dtr__tcp_set_place(a, 1, dtr__tcp_place_of(b, 1));
    dtr__tcp_set_place(b, 0, dtr__tcp_place_of(a, 0));
}

static void setup(void) {
    rank[0] = make_rank(0, 1);
    rank[1] = make_rank(1, 1);
    introduce(rank[0], rank[1]);
}

static void teardown(void) {
    dtr__tcp_free(rank[0]);
    dtr__tcp_free(rank[1]);
}

static dtr__tcp_op *sending(int from, int tag, const void *data, size_t nbytes) {
    dtr__tcp_op *op = NULL;
    ck_assert_int_eq(
        dtr__tcp_send(rank[from], CHANNEL, 1 - from, tag, data, nbytes, DTR__TCP_PLAIN, &op), 0);
    return op;
}

static dtr__tcp_op *receiving(int to, int from, int tag, void *data, size_t nbytes) {
    dtr__tcp_op *op = NULL;
    ck_assert_int_eq(dtr__tcp_recv(rank[to], CHANNEL, from, tag, data, nbytes, &op), 0);
    return op;
}

static bool is_complete(int r, dtr__tcp_op **op, dtr__tcp_arrival *a) {
    int complete = 0;
    ck_assert_int_eq(dtr__tcp_test(rank[r], op, &complete, a), 0);
    return complete;
}

/* Both move until it is complete. */
static dtr__tcp_arrival wait_for(int r, dtr__tcp_op *op) {
    dtr__tcp_arrival a;
    while (!is_complete(r, &op, &a)) {
        dtr__tcp_poll(rank[1 - r]);
    }
    ck_assert_ptr_null(op);
    return a;
}

static unsigned char *bytes(size_t n, unsigned seed) {
    unsigned char *p = malloc(n);
    for (size_t i = 0; i < n; i++) {
        p[i] = (unsigned char)((i * 31 + i / 4096 + seed) & 0xff);
    }
    return p;
}

/* Both send before either receives, much more than sockets hold. */
START_TEST(long_messages_both_ways) {
    unsigned char *out[2] = { bytes(LONG, 1), bytes(LONG, 2) },
                  *in[2] = { bytes(LONG, 3), bytes(LONG, 3) };
    dtr__tcp_op *sent[2], *got[2];
    for (int r = 0; r < 2; r++) {
        sent[r] = sending(r, 5, out[r], LONG);
    }
    for (int i = 0; i < 100; i++) {
        dtr__tcp_poll(rank[i % 2]);
    }
    for (int r = 0; r < 2; r++) {
        got[r] = receiving(r, 1 - r, 5, in[r], LONG);
    }
    for (int r = 0; r < 2; r++) {
        const dtr__tcp_arrival a = wait_for(r, got[r]);
        ck_assert(a.source == 1 - r && a.tag == 5 && a.nbytes == LONG && !a.cancelled);
        (void)wait_for(r, sent[r]);
        ck_assert_mem_eq(in[r], out[1 - r], LONG);
    }
    for (int r = 0; r < 2; r++) {
        free(out[r]);
        free(in[r]);
    }
}
END_TEST

/* Tags and channels find their own receives; of one tag, messages come in their order, short or
 * long. */
START_TEST(each_finds_its_receive) {
    const size_t size[] = { SHORT, LONG, 0, SHORT, 70000 };
    enum { N = sizeof size / sizeof size[0] };
    unsigned char *out[N], *in[N], other = 9, nine = 0;
    dtr__tcp_op *sent[N], *apart, *apart_got;
    ck_assert_int_eq(dtr__tcp_send(rank[0], CHANNEL + 1, 1, 3, &other, 1, DTR__TCP_PLAIN, &apart),
                     0);
    for (int i = 0; i < N; i++) {
        out[i] = bytes(size[i] + 1, (unsigned)i);
        in[i] = bytes(size[i] + 1, 100);
        sent[i] = sending(0, i == 3 ? 4 : 3, out[i], size[i]);
    }
    const dtr__tcp_arrival first = wait_for(1, receiving(1, DTR__TCP_ANY, 4, in[3], size[3]));
    ck_assert(first.source == 0 && first.tag == 4 && first.nbytes == size[3]);
    for (int i = 0; i < N; i++) {
        if (i != 3) {
            const int any = i == 1 ? DTR__TCP_ANY : 3;
            const dtr__tcp_arrival a = wait_for(1, receiving(1, 0, any, in[i], size[i]));
            ck_assert(a.tag == 3 && a.nbytes == size[i]);
        }
        ck_assert_mem_eq(in[i], out[i], size[i]);
    }
    ck_assert_int_eq(dtr__tcp_recv(rank[1], CHANNEL + 1, 0, 3, &nine, 1, &apart_got), 0);
    (void)wait_for(1, apart_got);
    (void)wait_for(0, apart);
    ck_assert_uint_eq(nine, 9);
    for (int i = 0; i < N; i++) {
        (void)wait_for(0, sent[i]);
        free(out[i]);
        free(in[i]);
    }
}
END_TEST

/* A rank sends to itself as to others. */
START_TEST(to_itself) {
    unsigned char *out = bytes(LONG, 1), *in = bytes(LONG, 2);
    dtr__tcp_op *sent, *got;
    ck_assert_int_eq(dtr__tcp_send(rank[0], CHANNEL, 0, 1, out, LONG, DTR__TCP_PLAIN, &sent), 0);
    ck_assert_int_eq(dtr__tcp_recv(rank[0], CHANNEL, 0, 1, in, LONG, &got), 0);
    (void)wait_for(0, got);
    (void)wait_for(0, sent);
    ck_assert_mem_eq(in, out, LONG);
    free(out);
    free(in);
}
END_TEST

/* What is too long for its receive is dropped, and said; what is shorter is said too. */
START_TEST(other_lengths) {
    const size_t size[] = { SHORT, LONG };
    unsigned char *out = bytes(LONG, 1), in[10], none[10];
    memset(none, 0xee, sizeof none);
    for (int posted_first = 0; posted_first < 2; posted_first++) {
        for (int i = 0; i < 2; i++) {
            memset(in, 0xee, sizeof in);
            dtr__tcp_op *got = posted_first ? receiving(1, 0, 1, in, 10) : NULL;
            dtr__tcp_op *sent = sending(0, 1, out, size[i]);
            got = posted_first ? got : receiving(1, 0, 1, in, 10);
            const dtr__tcp_arrival a = wait_for(1, got);
            ck_assert_uint_eq(a.nbytes, size[i]);
            ck_assert_mem_eq(in, none, sizeof in);
            (void)wait_for(0, sent);
        }
    }
    dtr__tcp_op *sent = sending(0, 1, out, 3);
    ck_assert_uint_eq(wait_for(1, receiving(1, 0, 1, in, 10)).nbytes, 3);
    (void)wait_for(0, sent);
    free(out);
}
END_TEST

/* Short messages that nobody receives are sent up to a bound, and all come when they are asked
 * for. */
START_TEST(unasked_messages_are_bounded) {
    enum { N = 100, SIZE = 32 << 10 };
    static unsigned char out[SIZE], in[SIZE];
    dtr__tcp_op *sent[N];
    dtr__tcp_arrival a;
    int complete = 0;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) {
            sent[i] = sending(0, i, out, SIZE);
        }
        for (int i = 0; i < 1000; i++) {
            dtr__tcp_poll(rank[i % 2]);
        }
        complete = 0;
        for (int i = 0; i < N; i++) {
            complete += is_complete(0, &sent[i], &a);
        }
        ck_assert_int_ge(complete, 10);
        ck_assert_int_le(complete, (1 << 20) / SIZE);
        for (int i = 0; i < N; i++) {
            (void)wait_for(1, receiving(1, 0, i, in, SIZE));
        }
        for (int i = 0; i < N; i++) {
            if (sent[i] != NULL) {
                (void)wait_for(0, sent[i]);
            }
        }
    }
}
END_TEST

/* ACCEPTED waits for its receive; AT_ONCE does not, whatever else is unasked for. */
START_TEST(modes) {
    unsigned char byte = 1;
    dtr__tcp_op *op;
    dtr__tcp_arrival a;
    ck_assert_int_eq(dtr__tcp_send(rank[0], CHANNEL, 1, 1, &byte, 1, DTR__TCP_ACCEPTED, &op), 0);
    for (int i = 0; i < 100; i++) {
        dtr__tcp_poll(rank[1]);
        ck_assert(!is_complete(0, &op, &a));
    }
    ck_assert(dtr__tcp_probe(rank[1], CHANNEL, DTR__TCP_ANY, DTR__TCP_ANY, &a));
    ck_assert(a.source == 0 && a.tag == 1 && a.nbytes == 1);
    ck_assert(!dtr__tcp_probe(rank[1], CHANNEL, 0, 2, &a));
    (void)wait_for(1, receiving(1, 0, 1, &byte, 1));
    (void)wait_for(0, op);
    ck_assert_int_eq(dtr__tcp_send(rank[0], CHANNEL, 1, 2, &byte, 1, DTR__TCP_AT_ONCE, &op), 0);
    (void)wait_for(0, op);
    (void)wait_for(1, receiving(1, 0, 2, &byte, 1));
}
END_TEST

/* What is given up at whatever place leaves the connection as it was, and its memory alone. */
START_TEST(given_up_on_the_way) {
    enum { MOST = 400 };
    unsigned char *out = bytes(LONG, 1), *in = bytes(LONG, 2), *after = bytes(SHORT, 3);
    unsigned char got[SHORT];
    for (int polls = 0; polls < MOST; polls = polls * 5 / 4 + 1) {
        for (int who = 0; who < 3; who++) { /* the sender, the receiver, both */
            dtr__tcp_op *s = sending(0, 1, out, LONG), *r = receiving(1, 0, 1, in, LONG);
            dtr__tcp_arrival a;
            for (int i = 0; i < polls && s != NULL && r != NULL; i++) {
                if (!is_complete(0, &s, &a)) {
                    (void)is_complete(1, &r, &a);
                }
            }
            if (s != NULL) {
                dtr__tcp_abandon(rank[0], &s);
            }
            if (r != NULL) {
                dtr__tcp_abandon(rank[1], &r);
            }
            memset(in, 0, 64);
            memset(out, 0, 64);
            dtr__tcp_op *next = sending(0, 2 + who, after, SHORT);
            (void)wait_for(1, receiving(1, 0, 2 + who, got, SHORT));
            (void)wait_for(0, next);
            ck_assert_mem_eq(got, after, SHORT);
            ck_assert_uint_eq(in[1], 0);
        }
    }
    dtr__tcp_op *r = receiving(1, 0, 99, in, SHORT);
    dtr__tcp_cancel(rank[1], r);
    ck_assert(wait_for(1, r).cancelled);
    free(out);
    free(in);
    free(after);
}
END_TEST

/* ---- notes ---- */

static int n_notes;

static void take(void *arg, int from, int tag, uint64_t channel, const void *data, size_t nbytes) {
    ck_assert_ptr_eq(arg, &n_notes);
    ck_assert(from == 0 && tag == 3 && channel == 5 && nbytes == sizeof n_notes);
    ck_assert_mem_eq(data, &n_notes, sizeof n_notes);
    n_notes++;
}

/* They come in order, also while a long message is on its way, and before the end of who sent
 * them. */
START_TEST(notes) {
    enum { N = 2000 };
    unsigned char *out = bytes(LONG, 1), *in = bytes(LONG, 2);
    dtr__tcp_op *s = sending(0, 1, out, LONG), *r = receiving(1, 0, 1, in, LONG);
    n_notes = 0;
    dtr__tcp_on_note(rank[1], take, &n_notes);
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(dtr__tcp_note(rank[0], 1, 3, 5, &i, 2, (const char *)&i + 2, 2), DTR_OK);
        dtr__tcp_poll(rank[i % 2]);
    }
    (void)wait_for(1, r);
    (void)wait_for(0, s);
    ck_assert_mem_eq(in, out, LONG);
    int last = N;
    ck_assert_int_eq(dtr__tcp_note(rank[0], 1, 3, 5, &last, sizeof last, NULL, 0), DTR_OK);
    dtr__tcp_free(rank[0]);
    while (!dtr__tcp_has_ended(rank[1], 0)) {
        dtr__tcp_poll(rank[1]);
    }
    ck_assert_int_eq(n_notes, N + 1);
    rank[0] = NULL;
    free(out);
    free(in);
}
END_TEST

/* ---- ends and strangers ---- */

/* In the midst of messages both ways: the other side's fail and name it. */
START_TEST(closed_in_the_midst) {
    enum { MUCH = 64 << 20 }; /* more than 20 polls move */
    unsigned char *out = bytes(MUCH, 1), *in = bytes(MUCH, 2), byte = 0;
    dtr__tcp_op *s = sending(1, 1, out, MUCH), *r = receiving(1, 0, 2, in, MUCH);
    dtr__tcp_op *theirs = sending(0, 2, out, MUCH), *theirs_too = receiving(0, 1, 1, in, MUCH);
    dtr__tcp_arrival a;
    ck_assert(!is_complete(0, &theirs, &a) && !is_complete(0, &theirs_too, &a));
    for (int i = 0; i < 20; i++) {
        dtr__tcp_poll(rank[i % 2]);
    }
    dtr__tcp_free(rank[0]);
    rank[0] = NULL;
    dtr__tcp_op *any = receiving(1, DTR__TCP_ANY, 9, &byte, 1);
    dtr__tcp_op *each[2] = { s, r };
    for (int i = 0; i < 2; i++) {
        int complete = 0, code = 0;
        while (code == 0 && !complete) {
            code = dtr__tcp_test(rank[1], &each[i], &complete, &a);
        }
        ck_assert_int_ne(code, 0);
        ck_assert_int_eq(dtr__tcp_failed(rank[1], NULL, code), DTR_ERR_REMOTE);
        ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "rank 0 (host here, pid"));
        dtr__tcp_abandon(rank[1], &each[i]);
    }
    ck_assert(dtr__tcp_has_ended(rank[1], 0));
    ck_assert(!is_complete(1, &any, &a)); /* another rank may send it */
    dtr__tcp_abandon(rank[1], &any);
    free(out);
    free(in);
}
END_TEST

/* Where rank 1 listens. */
static int connect_stranger(void) {
    const struct sockaddr_in to = { .sin_family = AF_INET,
                                    .sin_port = htons(dtr__tcp_place_of(rank[1], 1)->port[0]),
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* They are put off whatever they say, and ranks talk all the same. */
START_TEST(strangers) {
    enum { N = 200 };
    unsigned char *garbage = bytes(4096, 5), byte = 4, got = 0;
    int fd[N];
    for (int i = 0; i < N; i++) {
        fd[i] = connect_stranger();
        if (i % 2 == 0) { /* the others say nothing */
            ck_assert_int_eq(send(fd[i], garbage, 4096, MSG_NOSIGNAL), 4096);
        }
        dtr__tcp_poll(rank[1]);
    }
    for (int i = 0; i < N; i += 2) {
        struct pollfd closed = { .fd = fd[i], .events = POLLIN };
        while (poll(&closed, 1, 0) == 0) {
            dtr__tcp_poll(rank[1]);
        }
        ck_assert_int_le(recv(fd[i], garbage, 4096, 0), 0);
    }
    dtr__tcp_op *s = sending(0, 1, &byte, 1);
    (void)wait_for(1, receiving(1, 0, 1, &got, 1));
    (void)wait_for(0, s);
    ck_assert_uint_eq(got, 4);
    for (int i = 0; i < N; i++) {
        close(fd[i]);
    }
    free(garbage);
}
END_TEST

/* Who has another key gets nothing through, and is not taken for a rank that has ended. */
START_TEST(another_key) {
    unsigned char byte = 1;
    dtr__tcp_op *s;
    dtr__tcp *other = make_rank(0, 2);
    dtr__tcp_arrival a;
    dtr__tcp_set_place(other, 1, dtr__tcp_place_of(rank[1], 1));
    ck_assert_int_eq(dtr__tcp_send(other, CHANNEL, 1, 1, &byte, 1, DTR__TCP_PLAIN, &s), 0);
    int complete = 0;
    for (int i = 0; i < 2000; i++) {
        ck_assert_int_eq(dtr__tcp_test(other, &s, &complete, &a), 0);
        dtr__tcp_poll(rank[1]);
        ck_assert(!complete);
    }
    ck_assert(!dtr__tcp_probe(rank[1], CHANNEL, DTR__TCP_ANY, DTR__TCP_ANY, &a));
    ck_assert(!dtr__tcp_has_ended(rank[1], 0));
    dtr__tcp_abandon(other, &s);
    dtr__tcp_free(other);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("tcp");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, long_messages_both_ways);
    tcase_add_test(tc, each_finds_its_receive);
    tcase_add_test(tc, to_itself);
    tcase_add_test(tc, other_lengths);
    tcase_add_test(tc, unasked_messages_are_bounded);
    tcase_add_test(tc, modes);
    tcase_add_test(tc, given_up_on_the_way);
    tcase_add_test(tc, notes);
    tcase_add_test(tc, closed_in_the_midst);
    tcase_add_test(tc, strangers);
    tcase_add_test(tc, another_key);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("tcp", make);
}
