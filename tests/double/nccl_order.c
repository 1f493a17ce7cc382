/* In which order what belongs to one call reaches CUDA and NCCL, as the log of the stand-ins has
 * it: the group around messages, the root's own copy, and what is asked behind the group's end. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nccl_data.h"

enum { FEW = 8 };

static int calls(const char *text) {
    return dtr_fake_cuda_log_count(text);
}

/* ---- the log of this thread, between the start of a group and its end and around it ---- */

typedef struct story {
    int groups, inside, sends, recvs;
    int bad;         /* calls of CUDA between start and end of a group */
    int unpaired;    /* sends that the receive from the same rank does not follow */
    int late;        /* copies behind the group */
    int polls;       /* looks at the communicator's state after a group's end, */
    int early;       /* and records of events before any */
    char copied[24]; /* stream of copies, and of NCCL */
    char moved[24];
    int streams; /* that do not agree */
} story;

static void stream_of(const char *line, char known[24], int *streams) {
    char s[24] = "";
    const char *at = strstr(line, "stream=");
    if (at != NULL && sscanf(at, "stream=%23s", s) == 1) {
        *streams += known[0] != '\0' && strcmp(known, s) != 0;
        snprintf(known, 24, "%s", s);
    }
}

static int root_of(const char *line) {
    int root = -1;
    const char *at = strstr(line, "root ");
    return at != NULL && sscanf(at, "root %d", &root) == 1 ? root : -1;
}

static story read_log(void) {
    story s = { .groups = 0 };
    char line[240], own[32];
    int to = -1; /* of a send whose receive has to come now */
    bool ended = false;
    snprintf(own, sizeof own, "thread=%d", (int)gettid());
    for (const char *at = dtr_fake_cuda_log_text(); *at != '\0';
         at += strcspn(at, "\n"), at += *at == '\n') {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        bool here = strstr(line, own) != NULL;
        bool moves = strstr(line, "ncclSend rank") != NULL || strstr(line, "ncclRecv rank") != NULL;
        if (!here && strncmp(line, "nccl", 4) == 0) {
            stream_of(line, s.moved, &s.streams); /* NCCL's launch, by a thread of its own */
        } else if (!here) {
            continue;
        } else if (strncmp(line, "ncclGroupStart", 14) == 0) {
            s.inside = 1;
            s.groups++;
        } else if (strncmp(line, "ncclGroupEnd", 12) == 0) {
            s.inside = 0;
            ended = true;
        } else if (moves && strstr(line, "ncclSend") != NULL) {
            s.sends++;
            s.unpaired += to >= 0;
            to = root_of(line);
        } else if (moves) {
            s.recvs++;
            s.unpaired += to != root_of(line);
            to = -1;
        } else if (strncmp(line, "cudaMemcpyAsync", 15) == 0) {
            stream_of(line, s.copied, &s.streams);
            s.late += s.groups > 0;
            s.bad += s.inside;
        } else if (strncmp(line, "cudaMalloc", 10) == 0) {
            s.bad += s.inside;
        } else if (strncmp(line, "ncclCommGetAsyncError", 21) == 0) {
            s.polls += ended;
        } else if (strncmp(line, "cudaEventRecord", 15) == 0) {
            s.early += ended && s.polls == 0;
        }
    }
    s.unpaired += to >= 0;
    return s;
}

/* ---- calls with messages ---- */

enum { GATHERV, SCATTERV, ALLTOALLV, IN_PLACE, RING, WAYS };
static const char *const way_name[WAYS] = { "gatherv", "scatterv", "alltoallv", "alltoall in place",
                                            "batch" };

static dtr_status issue(int way, dtr_buffer a, dtr_buffer b, const dtr_coll_options *o,
                        dtr_work **w) {
    dtr_group *g = th_group();
    size_t counts[8];
    bool root = th_rank() == 0;
    int n = th_size(), next = (th_rank() + 1) % n, before = (th_rank() + n - 1) % n;
    dtr_buffer few = { a.data, FEW, DTR_F32, gpu }, none = { NULL, 0, DTR_F32, gpu };
    dtr_buffer got = { b.data, FEW, DTR_F32, gpu };
    dtr_p2p list[] = { { true, few, th_rank(), 0 },
                       { false, got, th_rank(), 0 },
                       { true, few, next, 0 },
                       { false, { (char *)b.data + 4 * FEW, FEW, DTR_F32, gpu }, before, 0 } };
    for (int r = 0; r < n; r++) {
        counts[r] = FEW;
    }
    switch (way) {
    case GATHERV:
        return dtr_gatherv(g, few, root ? b : none, root ? counts : NULL, 0, o, w);
    case SCATTERV:
        return dtr_scatterv(g, root ? a : none, root ? counts : NULL, got, 0, o, w);
    case ALLTOALLV:
        return dtr_alltoallv(g, a, counts, b, counts, o, w);
    case IN_PLACE:
        return dtr_alltoall(g, b, b, o, w);
    default:
        return dtr_batch_p2p(g, list, 4, o, w);
    }
}

/* NCO7, NCO13, NCO17, NCP12, nccl:X19, X23: one group for each call, in it nothing but NCCL's: to
 * each rank a send, then the receive from it; copies of what stays here before it, on the same
 * stream. What the end of the group leaves in progress is asked for before the end event. */
START_TEST(NCO17_order_of_a_call) {
    dtr_buffer a = filled((size_t)th_size() * FEW, (float)th_rank());
    dtr_buffer b = filled((size_t)th_size() * FEW, 3);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    cudaStream_t stream;
    allreduce_good(th_group());
    TH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    o.stream = stream;
    for (int way = 0; way < WAYS; way++) {
        dtr_work *w = NULL;
        cudaEvent_t open;
        cudaEventCreateWithFlags(&open, cudaEventDisableTiming);
        dtr_fake_cuda_hold(open, 1); /* nothing of it runs before the log has been read */
        cudaEventRecord(open, stream);
        cudaStreamWaitEvent(stream, open, 0);
        dtr_fake_cuda_log_start();
        TH_IS(issue(way, a, b, &o, &w), DTR_OK);
        story s = read_log();
        bool root = th_rank() == 0, exchanges = way == ALLTOALLV || way == IN_PLACE;
        bool copies = way == GATHERV || way == SCATTERV ? root : true;
        TH_CHECK(s.groups == 1 && s.inside == 0, "%s: %d groups: %s", way_name[way], s.groups,
                 dtr_fake_cuda_log_text());
        TH_CHECK(s.bad == 0 && s.late == 0, "%s: %d calls of CUDA in the group, %d behind: %s",
                 way_name[way], s.bad, s.late, dtr_fake_cuda_log_text());
        TH_CHECK(!exchanges || (s.unpaired == 0 && s.sends == th_size() - 1 && s.recvs == s.sends),
                 "%s: %d sends, %d receives, %d not in pairs: %s", way_name[way], s.sends, s.recvs,
                 s.unpaired, dtr_fake_cuda_log_text());
        TH_CHECK((s.copied[0] != '\0') == copies && s.streams == 0 &&
                     (!copies || s.moved[0] == '\0' || strcmp(s.copied, s.moved) == 0),
                 "%s: copies on %s, NCCL on %s: %s", way_name[way], s.copied, s.moved,
                 dtr_fake_cuda_log_text());
        TH_CHECK(s.polls > 0 && s.early == 0, "%s: %d looks after the end of the group: %s",
                 way_name[way], s.polls, dtr_fake_cuda_log_text());
        dtr_fake_cuda_hold(open, 0);
        TH_IS(dtr_work_synchronize(w, -1), DTR_OK);
        TH_IS(dtr_work_release(w), DTR_OK);
        cudaEventDestroy(open);
        TH_AGREE();
    }
    cudaStreamDestroy(stream);
    drop(a);
    drop(b);
    TH_AGREE();
}
END_TEST

/* Each rank had what `filled` gives. */
static void check_exchanged(dtr_buffer b, float value) {
    float *h = malloc(b.count * sizeof *h);
    get(h, b);
    for (size_t i = 0; i < b.count; i++) {
        float want = value + (float)(((size_t)th_rank() * FEW + i % FEW) % 7);
        TH_CHECK(h[i] == want, "element %zu is %g, not %g", i, (double)h[i], (double)want);
    }
    free(h);
}

/* NCO17 in a scope: memory and copies that its calls need come before the one group. A copy that
 * fails is this rank's error, no group is left open, and the others hear of it. */
START_TEST(NCO17_scope_and_failure) {
    dtr_buffer a = filled((size_t)th_size() * FEW, 1), b = filled((size_t)th_size() * FEW, 2);
    dtr_buffer c = filled((size_t)th_size() * FEW, 4);
    size_t counts[8];
    dtr_group *g = NULL;
    for (int r = 0; r < th_size(); r++) {
        counts[r] = FEW;
    }
    allreduce_good(th_group());
    dtr_fake_cuda_log_start();
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), a, a, DTR_MAX, NULL, NULL), DTR_OK);
    TH_IS(dtr_alltoall(th_group(), b, b, NULL, NULL), DTR_OK);
    TH_IS(dtr_alltoall(th_group(), c, c, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
    story s = read_log();
    TH_CHECK(s.groups == 1 && s.bad == 0 && s.late == 0 && calls("cudaMemcpyAsync") == 4,
             "%d groups, %d calls of CUDA inside, %d behind: %s", s.groups, s.bad, s.late,
             dtr_fake_cuda_log_text());
    check_exchanged(b, 2);
    check_exchanged(c, 4);
    TH_AGREE();
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), NULL, &g), DTR_OK);
    allreduce_good(g);
    th_barrier(); /* or the failure may end it too */
    fault_on_culprit("DTR_FAKE_CUDA_ERR", "cudaMemcpyAsync:1:700");
    dtr_fake_cuda_log_start();
    dtr_work *w = NULL;
    dtr_status got = dtr_alltoallv(g, a, counts, b, counts, NULL, &w);
    got = got == DTR_OK ? dtr_work_synchronize(w, -1) : got;
    TH_CHECK(got < 0, "%s", dtr_status_name(got));
    TH_CHECK(th_rank() != culprit() || got == DTR_ERR_CUDA, "%s", dtr_status_name(got));
    TH_CHECK(calls("ncclGroupStart") == calls("ncclGroupEnd"), "%s", dtr_fake_cuda_log_text());
    TH_IS(dtr_work_release(w), DTR_OK);
    fault("DTR_FAKE_CUDA_ERR", NULL);
    end_group(g);
    allreduce_good(th_group());
    drop(a);
    drop(b);
    drop(c);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl order", 110);
    th_add(tc, NCO17_order_of_a_call, 2, 0);
    th_add(tc, NCO17_scope_and_failure, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nccl order", make);
}
