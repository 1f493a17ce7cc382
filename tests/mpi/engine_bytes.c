/* Byte strings (OBJ rows; OBJ4: each call returns when it is over, there is no work to ask for). */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "harness.h"

/* The string that rank r gives as number i: length and contents follow from both. */
static dtr_bytes make_string(int r, int i, size_t nbytes) {
    dtr_bytes b = { nbytes > 0 ? malloc(nbytes) : NULL, nbytes };
    for (size_t k = 0; k < nbytes; k++) {
        ((unsigned char *)b.data)[k] = (unsigned char)(r * 31 + i * 7 + (int)(k % 251));
    }
    return b;
}

static bool is_string(const dtr_bytes *b, int r, int i, size_t nbytes) {
    if (b->nbytes != nbytes || (b->data == NULL) != (nbytes == 0)) {
        return false;
    }
    for (size_t k = 0; k < nbytes; k++) {
        if (((unsigned char *)b->data)[k] != (unsigned char)(r * 31 + i * 7 + (int)(k % 251))) {
            return false;
        }
    }
    return true;
}

static const size_t sizes[] = { 0, 1, 7, 4096, 300000 };
enum { SIZES = 5 };

/* OBJ0, OBJ5, OBJ2, OBJ20: every rank's string everywhere, own included; short, long and empty
 * ones. */
START_TEST(allgather) {
    int n = th_size();
    dtr_bytes *out = malloc(sizeof(dtr_bytes) * (size_t)n);
    for (int round = 0; round < SIZES + 2; round++) {
        uint64_t seq = dtr_group_seq(th_group());
        size_t mine = round < SIZES    ? sizes[(round + th_rank()) % SIZES]
                      : round == SIZES ? (size_t)th_rank()
                                       : 0;
        dtr_bytes in = make_string(th_rank(), round, mine);
        TH_IS(dtr_allgather_bytes(th_group(), in, NULL, out), DTR_OK);
        for (int r = 0; r < n; r++) {
            size_t want = round < SIZES    ? sizes[(round + r) % SIZES]
                          : round == SIZES ? (size_t)r
                                           : 0;
            TH_CHECK(is_string(&out[r], r, round, want), "round %d: string of rank %d", round, r);
        }
        TH_CHECK(dtr_group_seq(th_group()) == seq + 1, "the sequence moved by %d",
                 (int)(dtr_group_seq(th_group()) - seq));
        dtr_bytes_free(out, (size_t)n);
        TH_CHECK(out[0].data == NULL && out[n - 1].nbytes == 0, "entries are not zeroed");
        free(in.data);
        TH_AGREE();
    }
    free(out);
}
END_TEST

/* OBJ14: the root's strings; `in` elsewhere is not looked at; out at the root may be NULL. */
START_TEST(broadcast) {
    dtr_bytes in[SIZES], out[SIZES];
    for (int root = 0; root < th_size(); root++) {
        for (int with_large = 0; with_large < 2; with_large++) {
            size_t n = with_large ? SIZES : SIZES - 1;
            for (size_t i = 0; i < n; i++) {
                in[i] = make_string(root, (int)i, th_rank() == root ? sizes[i] : 0);
                out[i] = (dtr_bytes){ (void *)&in, 99 };
            }
            bool skip = th_rank() == root && with_large;
            TH_IS(dtr_broadcast_bytes(th_group(), th_rank() == root ? in : NULL, n, root, NULL,
                                      skip ? NULL : out),
                  DTR_OK);
            for (size_t i = 0; i < n; i++) {
                TH_CHECK(skip || is_string(&out[i], root, (int)i, sizes[i]), "string %zu", i);
                TH_CHECK(th_rank() != root || is_string(&in[i], root, (int)i, sizes[i]),
                         "in was written");
                free(in[i].data);
            }
            if (!skip) {
                dtr_bytes_free(out, n);
            }
            TH_AGREE();
        }
    }
    TH_OK(dtr_broadcast_bytes(th_group(), NULL, 0, 0, NULL, NULL));
}
END_TEST

/* OBJ8, OBJ15, OBJ16: gather to and scatter from every root. */
START_TEST(gather_and_scatter) {
    int n = th_size();
    dtr_bytes *all = calloc((size_t)n, sizeof *all), *back = calloc((size_t)n, sizeof *back);
    for (int root = 0; root < n; root++) {
        bool here = root == th_rank();
        dtr_bytes in = make_string(th_rank(), root, sizes[(th_rank() + root) % SIZES]), got;
        TH_IS(dtr_gather_bytes(th_group(), in, root, NULL, here ? all : NULL), DTR_OK);
        for (int r = 0; here && r < n; r++) {
            TH_CHECK(is_string(&all[r], r, root, sizes[(r + root) % SIZES]), "from rank %d", r);
        }
        TH_IS(dtr_scatter_bytes(th_group(), here ? all : (dtr_bytes *)&in, here ? (size_t)n : 77,
                                root, NULL, &got),
              DTR_OK);
        TH_CHECK(is_string(&got, th_rank(), root, in.nbytes), "the string did not come back");
        dtr_bytes_free(&got, 1);
        dtr_bytes_free(all, here ? (size_t)n : 0);
        free(in.data);
        TH_AGREE();
    }
    free(all);
    free(back);
}
END_TEST

/* OBJ10, OBJ11: lists of strings around a ring, even ranks first. */
START_TEST(send_and_receive) {
    int n = th_size(), next = (th_rank() + 1) % n, before = (th_rank() + n - 1) % n;
    dtr_bytes in[SIZES], out[SIZES];
    uint64_t seq = dtr_group_seq(th_group());
    for (size_t count = 0; count <= SIZES; count++) {
        int source = -1;
        for (size_t i = 0; i < count; i++) {
            in[i] = make_string(th_rank(), (int)i, sizes[i]);
        }
        bool first = th_rank() % 2 == 0;
        for (int turn = 0; turn < 2; turn++) {
            if ((turn == 0) == first) {
                TH_IS(dtr_send_bytes(th_group(), in, count, next, 5, NULL), DTR_OK);
            } else {
                TH_IS(dtr_recv_bytes(th_group(), count, before, 5, NULL, out, &source), DTR_OK);
            }
        }
        TH_CHECK(source == before, "source %d", source);
        for (size_t i = 0; i < count; i++) {
            TH_CHECK(is_string(&out[i], before, (int)i, sizes[i]), "%zu of %zu", i, count);
            free(in[i].data);
        }
        dtr_bytes_free(out, count);
        TH_AGREE();
    }
    TH_ALL(dtr_group_seq(th_group()) == seq, "the sequence moved");
}
END_TEST

/* OBJ12: any source, the contents from whom the header came; several senders, many rounds. */
START_TEST(any_source) {
    enum { ROUNDS = 200 };
    if (th_rank() == 0) {
        int *seen = calloc((size_t)th_size(), sizeof *seen);
        for (int i = 0; i < ROUNDS * (th_size() - 1); i++) {
            dtr_bytes out[2];
            int from = -1;
            TH_IS(dtr_recv_bytes(th_group(), 2, DTR_ANY_SOURCE, 1, NULL, out, &from), DTR_OK);
            bool known = from > 0 && from < th_size();
            TH_CHECK(known && is_string(&out[0], from, seen[from], (size_t)(from * 10 + 1)) &&
                         is_string(&out[1], from, seen[from] + 1, (size_t)(from % 2 * 5000)),
                     "message %d from %d", i, from);
            seen[known ? from : 0]++;
            dtr_bytes_free(out, 2);
        }
        free(seen);
    } else {
        for (int i = 0; i < ROUNDS; i++) {
            dtr_bytes in[2] = { make_string(th_rank(), i, (size_t)(th_rank() * 10 + 1)),
                                make_string(th_rank(), i + 1, (size_t)(th_rank() % 2 * 5000)) };
            TH_IS(dtr_send_bytes(th_group(), in, 2, 0, 1, NULL), DTR_OK);
            free(in[0].data);
            free(in[1].data);
        }
    }
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* OBJ8, OBJ10, OBJ17, OBJ20 and the rest of the arguments; out stays as it was (OBJ24), an
 * outsider's too (OBJ6). */
START_TEST(bad_arguments) {
    int n = th_size(), me = th_rank();
    char x = 1;
    dtr_bytes one = { &x, 1 }, bad = { NULL, 1 }, out[64], marked = { &x, 42 };
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    uint64_t seq = dtr_group_seq(th_group());
    out[0] = marked;
    TH_IS(dtr_allgather_bytes(th_group(), bad, NULL, out), DTR_ERR_ARG);
    TH_MESSAGE("in[0].data");
    TH_IS(dtr_allgather_bytes(th_group(), one, NULL, NULL), DTR_ERR_ARG);
    TH_MESSAGE("out is NULL");
    TH_IS(dtr_gather_bytes(th_group(), one, n, NULL, out), DTR_ERR_RANK);
    TH_MESSAGE("gather_bytes");
    TH_IS(dtr_gather_bytes(th_group(), one, me, NULL, NULL), DTR_ERR_ARG);
    if (n > 1) {
        TH_IS(dtr_gather_bytes(th_group(), one, (me + 1) % n, NULL, out), DTR_ERR_ARG);
        TH_MESSAGE("not the root");
    }
    TH_IS(dtr_scatter_bytes(th_group(), &one, (size_t)n + 1, me, NULL, out), DTR_ERR_ARG);
    TH_MESSAGE("one string per rank");
    TH_IS(dtr_broadcast_bytes(th_group(), NULL, 1, me, NULL, out), DTR_ERR_ARG);
    TH_IS(dtr_broadcast_bytes(th_group(), &one, 1, -1, NULL, out), DTR_ERR_RANK);
    TH_IS(dtr_send_bytes(th_group(), &one, 1, me, 0, NULL), DTR_ERR_RANK);
    TH_MESSAGE("itself");
    TH_IS(dtr_recv_bytes(th_group(), 1, me, 0, NULL, out, NULL), DTR_ERR_RANK);
    TH_IS(dtr_send_bytes(th_group(), &one, 1, (me + 1) % n, -1, NULL),
          n > 1 ? DTR_ERR_ARG : DTR_ERR_RANK);
    o.timeout_s = NAN;
    TH_IS(dtr_allgather_bytes(th_group(), one, &o, out), DTR_ERR_ARG);
    dtr_bytes huge[2] = { { &x, SIZE_MAX }, { &x, 1 } };
    TH_IS(dtr_broadcast_bytes(th_group(), huge, 2, me, NULL, out), DTR_ERR_OVERFLOW);
    TH_IS(dtr_allgather_bytes(NULL, bad, NULL, out), DTR_NOT_MEMBER);
    TH_CHECK(out[0].data == &x && out[0].nbytes == 42, "out was written");
    TH_CHECK(dtr_group_seq(th_group()) == seq, "the sequence moved");
    dtr_bytes zero = { NULL, 0 };
    dtr_bytes_free(&zero, 1);
    dtr_bytes_free(NULL, 3);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* COA4: no part of a scope; the call aborts it. */
START_TEST(inside_a_scope) {
    dtr_bytes out[64], none = { NULL, 0 };
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allgather_bytes(th_group(), none, NULL, out), DTR_ERR_STATE);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_ERR_STATE);
    TH_MESSAGE("dtr_allgather_bytes");
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* OBJ13: different n is a mismatch, with nothing allocated. */
START_TEST(different_n) {
    char x = 1;
    dtr_bytes in[3] = { { &x, 1 }, { &x, 1 }, { &x, 1 } }, out[3] = { { &x, 7 } };
    size_t n = th_rank() == th_size() - 1 ? 3 : 2;
    TH_IS(dtr_broadcast_bytes(th_group(), in, n, 0, NULL, out), DTR_ERR_MISMATCH);
    TH_MESSAGE("n = 2");
    TH_MESSAGE("n = 3");
    TH_CHECK(out[0].data == &x && out[0].nbytes == 7, "out was written");
    TH_AGREE();
    TH_IS(dtr_group_abort(th_group(), "the test is over"), DTR_OK);
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

START_TEST(different_n_of_a_pair) {
    char x = 1;
    dtr_bytes in[3] = { { &x, 1 }, { &x, 1 }, { &x, 1 } }, out[3] = { { &x, 7 } };
    if (th_rank() == 0) {
        dtr_status s = dtr_send_bytes(th_group(), in, 3, 1, 0, NULL);
        TH_CHECK(s == DTR_OK || s == DTR_ERR_MISMATCH, "the sender got %s", dtr_status_name(s));
    } else if (th_rank() == 1) {
        TH_IS(dtr_recv_bytes(th_group(), 2, 0, 0, NULL, out, NULL), DTR_ERR_MISMATCH);
        TH_MESSAGE("n = 3");
        TH_CHECK(out[0].data == &x && out[0].nbytes == 7, "out was written");
    }
    TH_AGREE();
    TH_IS(dtr_group_abort(th_group(), "the test is over"), DTR_OK);
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

/* A peer that does not come: the limit names the call, out is untouched. */
START_TEST(absent_peer) {
    char x = 1;
    dtr_bytes out[64] = { { &x, 7 } }, in = { &x, 1 };
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.timeout_s = 0.3;
    o.label = "names";
    if (th_rank() == 0) {
        TH_IS(dtr_allgather_bytes(th_group(), in, &o, out), DTR_ERR_TIMEOUT);
        TH_MESSAGE("allgather_bytes #1");
        TH_MESSAGE("'names'");
        TH_CHECK(out[0].data == &x && out[0].nbytes == 7, "out was written");
    }
    TH_AGREE();
    TH_IS(dtr_group_abort(th_group(), "the test is over"), DTR_OK);
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

/* OBJ7: one large string does not cost its size times the group size everywhere. */
START_TEST(memory) {
    enum { LARGE = 16 << 20 };
    int n = th_size();
    struct rusage before, after;
    dtr_bytes *out = calloc((size_t)n, sizeof *out);
    dtr_bytes in = make_string(th_rank(), 0, th_rank() == 0 ? LARGE : 1);
    getrusage(RUSAGE_SELF, &before);
    TH_IS(dtr_allgather_bytes(th_group(), in, NULL, out), DTR_OK);
    getrusage(RUSAGE_SELF, &after);
    long grown = after.ru_maxrss - before.ru_maxrss; /* KiB */
    TH_CHECK(grown < 3 * LARGE / 1024, "memory grew by %ld KiB", grown);
    TH_CHECK(is_string(&out[0], 0, 0, LARGE) && is_string(&out[n - 1], n - 1, 0, n > 1 ? 1 : LARGE),
             "wrong strings");
    dtr_bytes_free(out, (size_t)n);
    free(out);
    free(in.data);
    TH_AGREE();
}
END_TEST

/* OBJ1, OBJ23, FI29: lengths arrive as 64-bit numbers, and what they come to is looked at before
 * memory is taken: the root says how much, the rank whose string waits is told by whom. Nothing is
 * read beyond the start of a long string before its receiver has accepted it. */
START_TEST(too_long_for_the_receiver) {
    enum { START = 8 << 20 };
    const size_t huge = SIZE_MAX / 2;
    const bool last = th_rank() == th_size() - 1;
    char x = 1, *start = calloc(1, START);
    dtr_bytes in = { last ? start : &x, last ? huge : 1 }, out[64] = { { &x, 7 } };
    dtr_status s = dtr_gather_bytes(th_group(), in, 0, NULL, th_rank() == 0 ? out : NULL);
    if (th_rank() == 0) {
        TH_CHECK(s == DTR_ERR_NOMEM, "the root got %s", dtr_status_name(s));
        TH_MESSAGE("9223372036854775807");
        TH_CHECK(out[0].data == &x && out[0].nbytes == 7, "out was written");
    } else if (last) {
        TH_CHECK(s == DTR_ERR_REMOTE, "the sender got %s", dtr_status_name(s));
        TH_MESSAGE("rank 0");
        TH_MESSAGE("9223372036854775807");
    } else {
        TH_CHECK(s == DTR_OK || s == DTR_ERR_REMOTE, "a short string: %s", dtr_status_name(s));
    }
    TH_AGREE();
    TH_IS(dtr_group_abort(th_group(), "the test is over"), DTR_OK);
    th_good_allreduce(dtr_world_group(th_world()));
    free(start);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "bytes", 60);
    th_add(tc, allgather, 0, 0);
    th_add(tc, broadcast, 0, 0);
    th_add(tc, gather_and_scatter, 0, 0);
    th_add(tc, send_and_receive, 2, 0);
    th_add(tc, any_source, 2, 0);
    th_add(tc, bad_arguments, 0, 0);
    th_add(tc, inside_a_scope, 0, 0);
    th_add(tc, different_n, 2, 0);
    th_add(tc, different_n_of_a_pair, 2, 0);
    th_add(tc, absent_peer, 2, 0);
    th_add(tc, too_long_for_the_receiver, 2, 0);
    th_add_measured(tc, memory, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "engine_bytes", make);
}
