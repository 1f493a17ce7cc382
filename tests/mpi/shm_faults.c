/* Where the kernel refuses shared memory to one rank or to all: the ranks go on without it after
 * one warning, and a backend that was named is refused on all ranks alike (CFG15, INI26,
 * reliability:FI20). */
#include "shm_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "data.h"
#include "harness.h"
#include "settings.h"
#include "world/world.h"

static int warnings, matching; /* lines on this rank */
static const char *wanted = "";

static void keep(void *arg, int level, const char *line) {
    (void)arg;
    (void)level;
    warnings += strstr(line, "warning:") != NULL;
    matching += strstr(line, wanted) != NULL;
}

static dtr_status create(shm_faults f, bool everywhere, const char *backend, dtr_world **w) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.log_fn = keep;
    o.backend = backend;
    warnings = matching = 0;
    shm_faults_name[0] = '\0';
    setenv("DTR_ARENA", "64MiB", 1);
    shm_faults_now = everywhere || th_rank() == th_size() - 1 ? f : (shm_faults){ 0 };
    dtr_status s = dtr_world_create(&o, w);
    shm_faults_now = (shm_faults){ 0 };
    unsetenv("DTR_ARENA");
    return s;
}

static int over_ranks(int mine) {
    uint64_t all[64], sum = 0;
    th_gather_u64((uint64_t)mine, all);
    for (int r = 0; r < th_size(); r++) {
        sum += all[r];
    }
    return (int)sum;
}

static void reduce(dtr_group *g, size_t count, dtr_mem kind) {
    th_buf in = th_buf_new(count, DTR_I32, kind, 4), out = th_buf_new(count, DTR_I32, kind, 0);
    int32_t *expected = malloc(count * sizeof *expected);
    th_fill(in.data, DTR_I32, DTR_SUM, 0, count, th_rank(), th_size());
    th_expect(expected, DTR_I32, DTR_SUM, 0, count, th_size());
    TH_IS(dtr_allreduce(g, dtr_cpu(in.data, count, DTR_I32), dtr_cpu(out.data, count, DTR_I32),
                        DTR_SUM, NULL, NULL),
          DTR_OK);
    TH_CHECK(th_differs(out.data, expected, DTR_I32, count) == count, "wrong sum");
    TH_CHECK(th_buf_ok(&in, false) && th_buf_ok(&out, false), "guard words were overwritten");
    free(expected);
    th_buf_free(&in);
    th_buf_free(&out);
}

static void served_by(dtr_group *g, const char *name) {
    dtr_group_info i = DTR_GROUP_INFO_INIT;
    TH_IS(dtr_group_get_info(g, &i), DTR_OK);
    TH_CHECK(strcmp(i.backend, name) == 0, "served by %s, not by %s", i.backend, name);
    reduce(g, 3, DTR_MEM_DEFAULT);
    reduce(g, 100000, DTR_MEM_DEFAULT);
}

/* A world that works after `n` warnings of all ranks together, over `backend`. */
static void goes_on(shm_faults f, bool everywhere, const char *backend, int n) {
    dtr_world *w = NULL;
    void *p = NULL;
    TH_OK(create(f, everywhere, NULL, &w));
    served_by(dtr_world_group(w), backend);
    TH_IS(dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, 1 << 20, &p), DTR_OK);
    TH_IS(dtr_free(w, p), DTR_OK);
    int all = over_ranks(warnings), here = over_ranks(matching);
    TH_CHECK(all == n && here == n, "%d warnings, %d with \"%s\"", all, here, wanted);
    TH_CHECK(shm_faults_name[0] == '\0' || access(shm_faults_name, F_OK) != 0, "%s is left",
             shm_faults_name);
    TH_OK(dtr_world_destroy(w));
}

static void refused(shm_faults f, bool everywhere, dtr_status want, const char *word) {
    dtr_world *const untouched = (dtr_world *)(intptr_t)64, *w = untouched;
    TH_STATUS(create(f, everywhere, "cpu:shm", &w), want);
    TH_CHECK(w == untouched, "the output was touched");
    TH_MESSAGE(word);
    TH_CHECK(shm_faults_name[0] == '\0' || access(shm_faults_name, F_OK) != 0, "%s is left",
             shm_faults_name);
    TH_AGREE();
}

/* What keeps a rank from memory that others see; all that is left is plain memory and messages. */
static const shm_faults no_way[] = {
    { .memfd_create = ENOSYS, .shm_open = ENOENT }, /* no /dev/shm */
    { .memfd_create = EMFILE, .pwrite = ENOSPC },   /* a full one */
    { .ftruncate = EIO },
    { .mmap = EPERM },
    { .mmap = ENOMEM },
};

START_TEST(no_memory_to_share) {
    wanted = "no node-shared memory on host";
    for (size_t i = 0; i < sizeof no_way / sizeof no_way[0]; i++) {
        for (int everywhere = 0; everywhere < 2; everywhere++) {
            goes_on(no_way[i], everywhere, "cpu:mpi", 1);
            refused(no_way[i], everywhere, DTR_ERR_UNSUPPORTED, "this node cannot share memory");
        }
    }
    goes_on((shm_faults){ 0 }, true, "cpu:shm", 0);
}
END_TEST

/* The second way, by names in /dev/shm, works as the first. */
START_TEST(by_name) {
    wanted = "warning:";
    goes_on((shm_faults){ .memfd_create = ENOSYS }, true, "cpu:shm", 0);
    goes_on((shm_faults){ .memfd_create = ENOSYS }, false, "cpu:shm", 0);
}
END_TEST

/* /dev/shm takes names but has no room: each group does without, and says so once. */
START_TEST(full_later) {
    const shm_faults full = { .memfd_create = ENOSYS, .fallocate = ENOSPC };
    wanted = "mpi serves it instead of shm";
    dtr_world *w = NULL;
    TH_OK(create(full, false, NULL, &w));
    served_by(dtr_world_group(w), "cpu:mpi");
    TH_CHECK(over_ranks(warnings) == 1 && over_ranks(matching) == 1, "warnings of the world");
    dtr_group *g = NULL;
    shm_faults_now.fallocate = th_rank() == 0 ? ENOSPC : 0;
    TH_OK(dtr_group_split(dtr_world_group(w), 0, -th_rank(), NULL, &g));
    served_by(g, "cpu:mpi");
    TH_CHECK(over_ranks(warnings) == 2 && over_ranks(matching) == 2, "warnings of a group");
    TH_OK(dtr_group_destroy(g));
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.backend = "cpu:shm";
    dtr_status s = dtr_group_split(dtr_world_group(w), 0, 0, &o, &g);
    TH_CHECK(s == DTR_ERR_NOMEM || s == DTR_ERR_REMOTE, "%s", dtr_status_name(s));
    TH_MESSAGE("no node-shared memory for its control block");
    TH_AGREE();
    shm_faults_now.fallocate = 0;
    TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g));
    served_by(g, "cpu:shm");
    TH_OK(dtr_group_destroy(g));
    TH_OK(dtr_world_destroy(w));
    refused(full, false, DTR_ERR_NOMEM, "no node-shared memory for its control block");
}
END_TEST

/* Reading a peer is denied from the start, on one rank: nobody does, and nothing is wrong. */
START_TEST(no_attach) {
    wanted = "warning:";
    setenv("DTR_TUNE", "cma_reduce=1,cma_copy=1", 1);
    for (int everywhere = 0; everywhere < 2; everywhere++) {
        goes_on((shm_faults){ .process_vm_readv = EPERM }, everywhere, "cpu:shm", 0);
    }
    unsetenv("DTR_TUNE");
}
END_TEST

/* A long message whose receiver is denied reading the sender when it begins, or half-way through:
 * it comes in pieces, all of it. */
START_TEST(no_attach_later) {
    enum { N = (4 << 20) + 100000 }; /* more than is read in one turn */
    unsigned char *x = malloc(N);
    dtr_world *w = NULL;
    setenv("DTR_TUNE", "cma_p2p=1", 1);
    TH_OK(create((shm_faults){ 0 }, true, "cpu:shm", &w));
    unsetenv("DTR_TUNE");
    for (int works = 0; works < 2; works++) {
        for (int i = 0; i < N; i++) {
            x[i] = (unsigned char)(th_rank() == 1 ? i * 7 + (i >> 8) + works : 0);
        }
        if (th_rank() == 1) {
            TH_IS(dtr_send(dtr_world_group(w), dtr_cpu(x, N, DTR_U8), 0, 4, NULL, NULL), DTR_OK);
        } else if (th_rank() == 0) {
            shm_faults_now = (shm_faults){ .process_vm_readv = EPERM, .readv_works = works };
            TH_IS(dtr_recv(dtr_world_group(w), dtr_cpu(x, N, DTR_U8), 1, 4, NULL, NULL), DTR_OK);
            TH_CHECK(shm_faults_now.readv_works < 0 || !dtr__cma_usable(w), "nothing was denied");
            shm_faults_now = (shm_faults){ 0 };
            int bad = 0;
            for (int i = 0; i < N; i++) {
                bad += x[i] != (unsigned char)(i * 7 + (i >> 8) + works);
            }
            TH_CHECK(bad == 0, "%d bytes are wrong after %d reads", bad, works);
        }
    }
    free(x);
    TH_OK(dtr_world_destroy(w));
    TH_AGREE();
}
END_TEST

/* Of messages that go both ways at once the kernel reads what a receiver takes while it sends, or
 * a sender sends while it receives. */
START_TEST(exchanges_are_read) {
    enum { N = 300000, MANY = 1 << 20 };
    unsigned char *x = calloc(2, N);
    const dtr_buffer out = dtr_cpu(x, N, DTR_U8), in = dtr_cpu(x + N, N, DTR_U8);
    const int peer = 1 - th_rank();
    dtr_world *w = NULL;
    setenv("DTR_TUNE", "cma_p2p=never,cma_exchange=64KiB", 1);
    TH_OK(create((shm_faults){ 0 }, true, "cpu:shm", &w));
    unsetenv("DTR_TUNE");
    dtr_group *g = dtr_world_group(w);
    int reads[3]; /* both at once, the send before the receive, one way */
    for (int way = 0; way < 3; way++) {
        const bool sends = way < 2 || th_rank() == 1, receives = way < 2 || th_rank() == 0;
        dtr_work *sent = NULL, *received = NULL;
        shm_faults_now = (shm_faults){ .process_vm_readv = EPERM, .readv_works = MANY };
        memset(x, th_rank() + 1 + way, N);
        if (th_rank() < 2 && way == 0) {
            const dtr_p2p both[2] = { { true, out, peer, 0 }, { false, in, peer, 0 } };
            TH_IS(dtr_batch_p2p(g, both, 2, NULL, NULL), DTR_OK);
        } else if (th_rank() < 2) {
            TH_IS(sends ? dtr_send(g, out, peer, 0, NULL, &sent) : DTR_OK, DTR_OK);
            TH_IS(receives ? dtr_recv(g, in, peer, 0, NULL, &received) : DTR_OK, DTR_OK);
            for (int i = 0; i < 2; i++) {
                dtr_work *work = i == 0 ? sent : received;
                TH_IS(work != NULL ? dtr_work_wait(work, -1) : DTR_OK, DTR_OK);
                TH_IS(work != NULL ? dtr_work_release(work) : DTR_OK, DTR_OK);
            }
        }
        TH_CHECK(th_rank() > 1 || !receives || (x[N] == peer + 1 + way && x[2 * N - 1] == x[N]),
                 "%d and %d from rank %d", x[N], x[2 * N - 1], peer);
        reads[way] = over_ranks(MANY - shm_faults_now.readv_works);
        shm_faults_now = (shm_faults){ 0 };
    }
    TH_CHECK((reads[0] > 0 && reads[1] > 0) || !dtr__cma_usable(w),
             "the kernel read %d and %d times", reads[0], reads[1]);
    TH_CHECK(reads[2] == 0, "the kernel read %d times what comes from a rank that only sends",
             reads[2]);
    free(x);
    TH_OK(dtr_world_destroy(w));
    TH_AGREE();
}
END_TEST

/* Large shared blocks with huge pages, with a kernel that has none or has none left. New blocks are
 * zero, also where an old one was, and everybody sees them. */
START_TEST(huge_pages) {
    static const int refusals[] = { 0, EINVAL, ENOMEM };
    enum { N = 3 << 20 };
    wanted = "warning:";
    for (int i = 0; i < 3; i++) {
        dtr_world *w = NULL;
        TH_OK(create((shm_faults){ 0 }, true, NULL, &w));
        shm_faults_now.madvise = refusals[i];
        for (int again = 0; again < 2; again++) {
            const dtr_device cpu = { DTR_CPU, 0 };
            int32_t *p = NULL, bad = 0;
            TH_IS(dtr_alloc(w, cpu, DTR_MEM_SHARED, N * sizeof *p, (void **)&p), DTR_OK);
            for (size_t k = 0; p != NULL && k < N; k++) {
                bad += p[k] != 0;
                p[k] = (int32_t)k + th_rank();
            }
            TH_CHECK(p != NULL && bad == 0, "%d of a new block are not zero", bad);
            TH_AGREE();
            TH_IS(dtr_allreduce(dtr_world_group(w), dtr_cpu(p, N, DTR_I32), dtr_cpu(p, N, DTR_I32),
                                DTR_MAX, NULL, NULL),
                  DTR_OK);
            for (size_t k = 0; k < N; k++) {
                bad += p[k] != (int32_t)k + th_size() - 1;
            }
            TH_CHECK(bad == 0, "%d are wrong", bad);
            TH_IS(dtr_free(w, p), DTR_OK);
        }
        TH_CHECK(over_ranks(warnings) == 0, "warnings");
        shm_faults_now.madvise = 0;
        TH_OK(dtr_world_destroy(w));
    }
}
END_TEST

/* A name of a killed job, which nobody holds, goes; those of others stay. */
START_TEST(left_behind) {
    char stale[64], held[64], other[64];
    int fd = -1;
    snprintf(stale, sizeof stale, "/dev/shm/dtr-arena-%08x%08x.0", 0xabcdU, (unsigned)getpid());
    snprintf(held, sizeof held, "/dev/shm/dtr-arena-%08x%08x.0", 0xabceU, (unsigned)getpid());
    snprintf(other, sizeof other, "/dev/shm/dtr-arena-%u", (unsigned)getpid());
    if (th_rank() == 0) {
        fd = open(held, O_RDWR | O_CREAT, 0600);
        TH_CHECK(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0, "cannot hold %s", held);
        close(open(stale, O_RDWR | O_CREAT, 0600));
        close(open(other, O_RDWR | O_CREAT, 0600));
    }
    TH_AGREE();
    wanted = "warning:";
    goes_on((shm_faults){ .memfd_create = ENOSYS }, true, "cpu:shm", 0);
    if (th_rank() == 0) {
        TH_CHECK(access(stale, F_OK) != 0, "%s is left", stale);
        TH_CHECK(access(held, F_OK) == 0, "%s of somebody else is gone", held);
        TH_CHECK(access(other, F_OK) == 0, "%s is no arena and is gone", other);
        unlink(stale);
        unlink(held);
        unlink(other);
        close(fd);
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "faults", 110);
    th_add(tc, no_memory_to_share, 2, 0);
    th_add(tc, by_name, 2, 0);
    th_add(tc, full_later, 2, 0);
    th_add(tc, no_attach, 2, 0);
    th_add(tc, no_attach_later, 2, 0);
    th_add(tc, exchanges_are_read, 2, 0);
    th_add(tc, huge_pages, 2, 0);
    th_add(tc, left_behind, 2, 0);
}

/* Without the harness: ranks that are killed, and the job that comes after them. Each writes the
 * names it has made to FOLDER/RANK. */
static int life(const char *what, const char *folder) {
    dtr_world *w = NULL;
    char path[512];
    const bool at_once = strcmp(what, "die_in_creation") == 0;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    rank = rank != NULL ? rank : getenv("PMI_RANK");
    shm_faults_now = (shm_faults){ .memfd_create = ENOSYS, .die_after_shm_open = at_once };
    snprintf(path, sizeof path, "%s/%s", folder, rank != NULL ? rank : "alone");
    shm_faults_note = fopen(path, "w");
    if (dtr_world_create(NULL, &w) != DTR_OK) {
        printf("failed: %s\n", dtr_last_error_message());
        return 1;
    }
    if (strcmp(what, "die_later") == 0) {
        dtr_barrier(dtr_world_group(w), NULL, NULL);
        raise(SIGKILL);
    }
    return dtr_world_destroy(w) == DTR_OK ? 0 : 1;
}

int main(int argc, char **argv) {
    return argc == 3 ? life(argv[1], argv[2]) : th_main(argc, argv, "shm_faults", make);
}
