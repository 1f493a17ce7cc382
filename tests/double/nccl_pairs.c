/* Both ends of a message that NCCL carries are compared, on the stand-ins: alone, in a batch and in
 * a coalescing scope; W10, collectives:NCO10, DBG8. */
#include <stdio.h>
#include <string.h>

#include "nccl_data.h"

/* What one end of a message gives. */
typedef struct end {
    size_t count;
    dtr_dtype dtype;
    const char *word; /* as the error says it */
} end;

/* As NCCL sees the last pair, nothing is wrong with it. */
static const struct {
    end sent, taken;
} odd[] = { { { 5, DTR_F32, "sends f32 x 5 to" }, { 4, DTR_F32, "receives f32 x 4 (" } },
            { { 4, DTR_F32, "sends f32 x 4 to" }, { 5, DTR_F32, "receives f32 x 5 (" } },
            { { 6, DTR_F32, "sends f32 x 6 to" }, { 6, DTR_I32, "receives i32 x 6 (" } } };
enum { ODD = sizeof odd / sizeof odd[0], MOST = 64, FROM = 0, TO = 1 };

static dtr_group *new_group(void) {
    dtr_group *g = NULL;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), NULL, &g), DTR_OK);
    allreduce_good(g);
    TH_AGREE();
    return g;
}

static dtr_buffer part(dtr_buffer b, const end *e) {
    return (dtr_buffer){ b.data, e->count, e->dtype, b.device };
}

/* Where the group breaks for the reason that both ends of the last message do not agree, and on
 * every rank. Nobody else is named: all before it agreed. */
static void expect_odd(dtr_group *g, dtr_buffer b, int i) {
    static const char file[] = "(called at nccl_pairs.c:";
    char who[64];
    while (dtr_group_status(g) == DTR_OK) {
        th_sleep(0.001);
    }
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_ERR_MISMATCH);
    snprintf(who, sizeof who, "rank %d sends", FROM);
    TH_MESSAGE(who);
    snprintf(who, sizeof who, "to rank %d", TO);
    TH_MESSAGE(who);
    TH_MESSAGE(odd[i].sent.word);
    TH_MESSAGE(odd[i].taken.word);
    const char *site = strstr(dtr_last_error_message(), file);
    TH_CHECK(site != NULL && strstr(site + 1, file) != NULL, "two call sites in: %s",
             dtr_last_error_message());
    end_group(g);
}

/* Which end this rank is: 1 the sender, -1 the receiver, 0 neither. */
static int side(void) {
    return th_rank() == FROM ? 1 : th_rank() == TO ? -1 : 0;
}

/* Agreeing messages of many sizes, whose numbers a wrong count would mix up: more in one direction
 * than in the other, and the two ends name them in different orders. */
static void agree_in_batches(dtr_group *g, dtr_buffer out, dtr_buffer in, int times) {
    for (int i = 0; i < times && side() != 0; i++) {
        dtr_buffer a = out, b = out, c = in;
        a.count = (size_t)i + 1;
        b.count = (size_t)i + MOST;
        c.count = (size_t)i;
        dtr_p2p from[] = { { true, a, TO, 0 }, { false, c, TO, 0 }, { true, b, TO, 0 } };
        dtr_p2p to[] = { { false, a, FROM, 0 }, { false, b, FROM, 0 }, { true, c, FROM, 0 } };
        TH_IS(dtr_batch_p2p(g, side() > 0 ? from : to, 3, NULL, NULL), DTR_OK);
    }
}

static void agree_alone(dtr_group *g, dtr_buffer b, int times) {
    for (int i = 0; i < times; i++) {
        dtr_buffer one = b;
        one.count = (size_t)i;
        bool sends = (i % 3 == 0) == (side() > 0);
        int peer = side() > 0 ? TO : FROM;
        if (side() != 0) {
            TH_IS(sends ? dtr_send(g, one, peer, 0, NULL, NULL)
                        : dtr_recv(g, one, peer, 0, NULL, NULL),
                  DTR_OK);
        }
    }
}

/* Its own status is whatever came first. */
static void drop_work(dtr_work *w) {
    if (w != NULL) {
        (void)dtr_work_synchronize(w, -1);
    }
    TH_IS(dtr_work_release(w), DTR_OK);
}

/* W10, NCO10: a message alone; the ones before it agree, in both directions. */
START_TEST(W10_NCO10_alone) {
    dtr_buffer b = filled(N, 1);
    for (int i = 0; i < ODD; i++) {
        dtr_group *g = new_group();
        dtr_work *w = NULL;
        agree_alone(g, b, 20);
        dtr_status s = side() > 0   ? dtr_send(g, part(b, &odd[i].sent), TO, 0, NULL, &w)
                       : side() < 0 ? dtr_recv(g, part(b, &odd[i].taken), FROM, 0, NULL, &w)
                                    : DTR_OK;
        TH_CHECK(s == DTR_OK || s == DTR_ERR_MISMATCH, "%s", dtr_status_name(s));
        drop_work(w);
        expect_odd(g, b, i);
    }
    drop(b);
    TH_AGREE();
}
END_TEST

/* W10, NCO10: the one entry of a batch, or call of a scope, that does not fit. */
START_TEST(W10_NCO10_among_others) {
    dtr_buffer a = filled(N, 1), b = filled(N, 2), c = filled(N, 3);
    for (int i = 0; i < ODD; i++) {
        dtr_group *g = new_group();
        dtr_work *w = NULL;
        bool scope = i == 1;
        const end *e = side() > 0 ? &odd[i].sent : &odd[i].taken;
        int peer = side() > 0 ? TO : FROM;
        dtr_p2p from[] = { { true, b, TO, 0 }, { true, part(c, e), TO, 0 }, { false, a, TO, 0 } };
        dtr_p2p to[] = { { true, a, FROM, 0 },
                         { false, b, FROM, 0 },
                         { false, part(c, e), FROM, 0 } };
        const dtr_p2p *list = side() > 0 ? from : to;
        dtr_status s = DTR_OK;
        agree_in_batches(g, a, b, 5);
        agree_alone(g, a, 5);
        if (scope && side() != 0) {
            TH_IS(dtr_coalesce_begin(g), DTR_OK);
            for (int k = 0; k < 3; k++) {
                TH_IS(list[k].is_send ? dtr_send(g, list[k].buf, peer, 0, NULL, NULL)
                                      : dtr_recv(g, list[k].buf, peer, 0, NULL, NULL),
                      DTR_OK);
            }
            s = dtr_coalesce_end(g, &w);
        } else if (side() != 0) {
            s = dtr_batch_p2p(g, list, 3, NULL, &w);
        }
        TH_CHECK(s == DTR_OK || s == DTR_ERR_MISMATCH, "%s", dtr_status_name(s));
        drop_work(w);
        expect_odd(g, b, i);
    }
    drop(a);
    drop(b);
    drop(c);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl pairs", 110);
    th_add(tc, W10_NCO10_alone, 2, 0);
    th_add(tc, W10_NCO10_among_others, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nccl pairs", make);
}
