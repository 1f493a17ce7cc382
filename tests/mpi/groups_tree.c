/* The tree by which groups are made: how many messages a rank has of it, and what becomes of a
 * creation when a rank within the tree keeps what it should pass on. */
#include "../../collectives/agreement/tree.h"
#include "base/world.h"
#include "groups_common.h"

/* ---- messages of this rank ---- */

/* What this rank keeps instead of sending it; 0: nothing. */
static int kept_tag, kept_kind, n_kept;
static int n_messages;

static int kind_of(int tag, const void *head) {
    return tag == DTR__TAG_AGREE_UP ? ((const dtr__up *)head)->kind
                                    : ((const dtr__down *)head)->kind;
}

__typeof__(dtr__mailbox_send) __real_dtr__mailbox_send, __wrap_dtr__mailbox_send;
dtr_status __wrap_dtr__mailbox_send(dtr_world *world, dtr__control_message **out, int to, int tag,
                                    const void *head, size_t head_nbytes, const void *tail,
                                    size_t tail_nbytes) {
    const bool agrees = tag == DTR__TAG_AGREE_UP || tag == DTR__TAG_AGREE_DOWN;
    n_messages += agrees;
    if (agrees && tag == kept_tag && kind_of(tag, head) == kept_kind) {
        n_kept++;
        return DTR_OK;
    }
    return __real_dtr__mailbox_send(world, out, to, tag, head, head_nbytes, tail, tail_nbytes);
}

/* A second commit may be of something earlier. */
static bool counts(int tag, const void *message) {
    return tag == DTR__TAG_AGREE_UP ||
           (tag == DTR__TAG_AGREE_DOWN && kind_of(tag, message) != DTR__DOWN_COMMIT);
}

dtr_status __real_dtr__mailbox_receive(dtr_world *world, dtr__arriving **in, int tag,
                                       void **message, size_t *nbytes, int *from);
dtr_status __wrap_dtr__mailbox_receive(dtr_world *world, dtr__arriving **in, int tag,
                                       void **message, size_t *nbytes, int *from);
dtr_status __wrap_dtr__mailbox_receive(dtr_world *world, dtr__arriving **in, int tag,
                                       void **message, size_t *nbytes, int *from) {
    const dtr_status s = __real_dtr__mailbox_receive(world, in, tag, message, nbytes, from);
    n_messages += *message != NULL && counts(tag, *message);
    return s;
}

/* ---- few of them ---- */

static int children(int i) {
    int n = 0;
    for (int j = 0; j < DTR__TREE_WIDTH; j++) {
        n += dtr__tree_child(dtr__tree_node_at(i, th_size()).n, j).n > 0;
    }
    return n;
}

/* A creation is two agreements, an end is one. In each there are entries, a proposal and an
 * acceptance for each child and for this rank itself, and a commit to each child in both trees. */
static int most_messages(void) {
    const int i = th_rank(), mirrored = i == 0 ? 0 : th_size() - i;
    return 2 * (3 * (children(i) + (i != 0)) + children(i) + children(mirrored));
}

/* Of several turns one at least has to do with so few: where a rank is held up for seconds, others
 * send more. */
enum { TURNS = 4 };

static void note_least(int *least) {
    *least = n_messages < *least ? n_messages : *least;
    n_messages = 0;
}

/* The last rank comes `late_s` after the others. */
static void few_messages(double late_s) {
    int to_create = 1000, to_split = 1000, to_end = 1000;
    for (int turn = 0; turn < TURNS; turn++) {
        dtr_group *all = NULL, *half = NULL;
        th_barrier();
        if (th_rank() == th_size() - 1) {
            th_sleep(late_s);
        }
        n_messages = 0;
        all = made(NULL, th_size(), NULL);
        note_least(&to_create);
        TH_AGREE();
        TH_IS(dtr_group_split(all, th_rank() % 2, -th_rank(), NULL, &half), DTR_OK);
        note_least(&to_split);
        TH_CHECK(dtr_group_size(half) == (th_size() + 1 - th_rank() % 2) / 2, "wrong size");
        TH_CHECK(dtr_group_rank_of(half, th_rank()) == dtr_group_rank(half), "wrong order");
        TH_AGREE();
        TH_IS(dtr_group_destroy(half), DTR_OK);
        TH_AGREE();
        n_messages = 0;
        TH_IS(dtr_group_destroy(all), DTR_OK);
        note_least(&to_end);
        TH_AGREE();
    }
    TH_CHECK(to_create <= most_messages(), "%d messages, not %d", to_create, most_messages());
    TH_CHECK(to_split <= most_messages(), "split: %d messages, not %d", to_split, most_messages());
    TH_CHECK(2 * to_end <= most_messages(), "end: %d messages, not %d", to_end,
             most_messages() / 2);
    TH_AGREE();
}

START_TEST(few_messages_of_any_rank) {
    few_messages(0);
    few_messages(0.3);
}
END_TEST

/* A rank that has been told the end of one agreement may speak of the next one to ranks that have
 * not: that is not lost, or all would enter directly in the end, at half of the limit. */
START_TEST(few_messages_again_and_again) {
    int n_more = 0;
    dtr_group_options o = options(10, NULL);
    for (int i = 0; i < 100; i++) {
        n_messages = 0;
        dtr_group *g = made(NULL, th_size(), &o);
        n_more += n_messages > most_messages();
        TH_IS(dtr_group_destroy(g), DTR_OK);
    }
    TH_CHECK(n_more <= 10, "more than %d messages, %d times", most_messages(), n_more);
    TH_AGREE();
}
END_TEST

/* ---- a rank that passes nothing on ---- */

/* Each child of the coordinator in turn keeps messages of a kind, and a group is made all the
 * same. */
static void made_although_kept(int tag, int kind, double limit_s, double within_s) {
    for (int j = 0; j < DTR__TREE_WIDTH && dtr__tree_child(th_size(), j).n > 0; j++) {
        const int odd = dtr__tree_child(th_size(), j).at;
        dtr_group_options o = options(limit_s, NULL);
        th_barrier();
        n_kept = 0;
        kept_tag = th_rank() == odd ? tag : 0;
        kept_kind = kind;
        const double began = th_now();
        dtr_group *g = made(NULL, th_size(), &o);
        const double took = th_now() - began;
        kept_tag = 0;
        TH_CHECK(took < within_s, "rank %d kept them: made after %g s", odd, took);
        TH_AGREE();
        th_barrier(); /* whoever gets a message late has it */
        th_good_allreduce(g);
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_AGREE();
    }
}

/* Entries: the ranks enter directly in time before their limit. */
START_TEST(entries_kept) {
    made_although_kept(DTR__TAG_AGREE_UP, DTR__UP_BATCH, 2, 60);
}
END_TEST

/* Proposals and acceptances: the coordinator proposes to each rank directly. */
START_TEST(proposals_kept) {
    made_although_kept(DTR__TAG_AGREE_DOWN, DTR__DOWN_PROPOSE, 0, 60);
}
END_TEST

START_TEST(acceptances_kept) {
    made_although_kept(DTR__TAG_AGREE_UP, DTR__UP_ACCEPT_ALL, 0, 60);
}
END_TEST

/* Commits: they come by two trees, so nobody waits. */
START_TEST(commits_kept) {
    made_although_kept(DTR__TAG_AGREE_DOWN, DTR__DOWN_COMMIT, 0, DTR__AGAIN_S);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "groups_tree", 120);
    th_add(tc, few_messages_of_any_rank, 2, 0);
    th_add(tc, few_messages_again_and_again, 2, 0);
    th_add(tc, entries_kept, 2, 0);
    th_add(tc, proposals_kept, 2, 0);
    th_add(tc, acceptances_kept, 2, 0);
    th_add(tc, commits_kept, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "groups_tree", make);
}
