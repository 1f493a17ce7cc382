/* The ways of the shm backend: cross-memory attach allowed, switched off and refused (agreed on all
 * ranks of the node, said once), and thresholds that local rank 0 reads for all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/shm/shm_p2p.h"
#include "data.h"
#include "harness.h"
#include "parts.h"
#include "world/world.h"

static int said; /* lines with `wanted` on this rank */
static const char *wanted;

static void keep(void *arg, int level, const char *line) {
    (void)arg;
    (void)level;
    said += strstr(line, wanted) != NULL;
}

/* A world of its own, with one variable set while it is made. */
static dtr_status world_with(const char *name, const char *value, dtr_world **w) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.log_fn = keep;
    said = 0;
    setenv("DTR_LOG", "info", 1);
    setenv(name, value, 1);
    dtr_status s = dtr_world_create(&o, w);
    unsetenv(name);
    unsetenv("DTR_LOG");
    return s;
}

static uint64_t sum_over_ranks(uint64_t mine) {
    uint64_t all[64], sum = 0;
    th_gather_u64(mine, all);
    for (int r = 0; r < th_size(); r++) {
        sum += all[r];
    }
    return sum;
}

/* 1 MiB of plain memory, apart and in place. */
static void reduce_some(dtr_world *w) {
    enum { N = 1 << 18 };
    th_buf in = th_buf_new(N, DTR_F32, DTR_MEM_DEFAULT, 4),
           out = th_buf_new(N, DTR_F32, DTR_MEM_DEFAULT, 0);
    float *want = malloc(N * sizeof *want);
    th_fill(in.data, DTR_F32, DTR_SUM, 0, N, th_rank(), th_size());
    th_expect(want, DTR_F32, DTR_SUM, 0, N, th_size());
    dtr_buffer a = dtr_cpu(in.data, N, DTR_F32), b = dtr_cpu(out.data, N, DTR_F32);
    TH_IS(dtr_allreduce(dtr_world_group(w), a, b, DTR_SUM, NULL, NULL), DTR_OK);
    TH_CHECK(th_differs(out.data, want, DTR_F32, N) == N, "wrong sum apart");
    TH_IS(dtr_allreduce(dtr_world_group(w), a, a, DTR_SUM, NULL, NULL), DTR_OK);
    TH_CHECK(th_differs(in.data, want, DTR_F32, N) == N, "wrong sum in place");
    TH_CHECK(th_buf_ok(&in, false) && th_buf_ok(&out, false), "guard words were overwritten");
    free(want);
    th_buf_free(&in);
    th_buf_free(&out);
}

START_TEST(switched_off) {
    dtr_world *w = NULL;
    wanted = "no cross-memory attach";
    TH_OK(world_with("DTR_CMA", "off", &w));
    TH_CHECK(!dtr__cma_usable(w), "usable although switched off");
    TH_CHECK(sum_over_ranks((uint64_t)said) == (th_size() > 1 ? 1 : 0), "said %d times", said);
    reduce_some(w);
    TH_OK(dtr_world_destroy(w));
}
END_TEST

/* One rank finds that it may not: nobody uses it, and one line says who. */
START_TEST(refused_on_one_rank) {
    dtr_world *w = NULL;
    wanted = "no cross-memory attach";
    TH_OK(world_with("DTR_TUNE", "cma_reduce=1,cma_copy=1", &w));
    int before = said;
    dtr__cma_close(w);
    if (dtr_world_local_size(w) > 1) {
        TH_IS(dtr__cma_open_as(w, dtr_world_local_rank(w) != dtr_world_local_size(w) - 1), DTR_OK);
        TH_CHECK(sum_over_ranks((uint64_t)(said - before)) == 1, "said %d times", said - before);
    }
    TH_CHECK(!dtr__cma_usable(w), "usable although one rank may not");
    reduce_some(w);
    TH_OK(dtr_world_destroy(w));
}
END_TEST

/* All ranks or none, whatever the kernel of this machine says; the sums are right either way. */
START_TEST(agreed_when_on) {
    dtr_world *w = NULL;
    wanted = "no cross-memory attach";
    TH_OK(world_with("DTR_TUNE", "cma_reduce=1,cma_piece=4K", &w));
    uint64_t usable = sum_over_ranks(dtr__cma_usable(w));
    TH_CHECK(usable == 0 || usable == (uint64_t)th_size(), "usable on %d of the ranks",
             (int)usable);
    reduce_some(w);
    TH_OK(dtr_world_destroy(w));
}
END_TEST

START_TEST(unreadable_memory) {
    const long page = sysconf(_SC_PAGESIZE);
    char *p = mmap(NULL, 2 * (size_t)page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool usable = dtr__cma_usable(th_world());
    TH_CHECK(!usable || dtr__cma_reaches(p, 2 * (size_t)page), "readable pages");
    mprotect(p + page, (size_t)page, PROT_NONE);
    TH_CHECK(!dtr__cma_reaches(p, 2 * (size_t)page), "a page that nobody may read");
    munmap(p, 2 * (size_t)page);
    TH_AGREE();
}
END_TEST

/* Local rank 0's value is everybody's. */
START_TEST(thresholds_of_rank_0) {
    dtr_world *w = NULL;
    char text[32];
    wanted = "";
    snprintf(text, sizeof text, "chunk=%dK", 64 + 4 * th_rank());
    TH_OK(world_with("DTR_TUNE", text, &w));
    int leader = w->local_world[0];
    TH_CHECK(w->tune.value[DTR__TUNE_CHUNK] == (uint64_t)(64 + 4 * leader) << 10, "chunk is %llu",
             (unsigned long long)w->tune.value[DTR__TUNE_CHUNK]);
    reduce_some(w);
    TH_OK(dtr_world_destroy(w));
}
END_TEST

/* A bad file fails the world on all ranks, with file and line. */
START_TEST(bad_file) {
    dtr_world *w = NULL;
    char path[] = "dtr-tune-XXXXXX";
    int fd = mkstemp(path);
    static const char text[] = "dtr-tune 1\nnode \"x\" 2\nchunk many\n";
    TH_CHECK(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1, "%s", path);
    close(fd);
    wanted = "";
    dtr_status s = world_with("DTR_TUNE_FILE", path, &w);
    TH_CHECK(s == (th_rank() == 0 ? DTR_ERR_ARG : DTR_ERR_REMOTE), "%s", dtr_status_name(s));
    TH_MESSAGE("line 3: chunk is \"many\"");
    unlink(path);
    TH_AGREE();
    s = world_with("DTR_TUNE_FILE", "/nowhere/x", &w);
    TH_CHECK(s == (th_rank() == 0 ? DTR_ERR_IO : DTR_ERR_REMOTE), "%s", dtr_status_name(s));
    TH_MESSAGE("/nowhere/x");
    TH_AGREE();
}
END_TEST

/* Node-shared memory of a rank: control structures of a group below 64 KiB + 4 KiB per rank, 16 KiB
 * for what breaks groups and 17 KiB for words of upper layers, staging below 8 MiB, and nothing
 * that grows with the number of operations. */
START_TEST(memory_is_bounded) {
    dtr_world *w = NULL;
    wanted = "";
    TH_OK(world_with("DTR_CMA", "off", &w));
    const size_t control = dtr__arena_used(w), most = (size_t)(64 + 4 * th_size()) << 10;
    dtr_group *g = NULL;
    TH_CHECK(control < most + (33 << 10), "control structures: %zu bytes", control);
    TH_OK(dtr_group_split(dtr_world_group(w), 0, th_rank(), NULL, &g));
    const size_t more = dtr__arena_used(w) - control;
    TH_CHECK(more < most, "control structures of a group: %zu bytes", more);
    TH_OK(dtr_group_destroy(g));
    TH_CHECK(dtr__arena_used(w) == control, "%zu bytes have become %zu", control,
             dtr__arena_used(w));
    reduce_some(w);
    const size_t staged = dtr__arena_used(w);
    TH_CHECK(staged - control < (size_t)8 << 20, "staging: %zu bytes", staged - control);
    for (int i = 0; i < 8; i++) {
        reduce_some(w);
    }
    TH_CHECK(dtr__arena_used(w) == staged, "%zu bytes have become %zu", staged, dtr__arena_used(w));
    TH_OK(dtr_world_destroy(w));
}
END_TEST

/* The least that DTR_SHM_STAGING takes, with chunks wished larger. */
START_TEST(little_staging) {
    dtr_world *w = NULL;
    wanted = "";
    setenv("DTR_TUNE", "chunk=4MiB,zero_copy=never", 1);
    setenv("DTR_CMA", "off", 1);
    TH_OK(world_with("DTR_SHM_STAGING", "256KiB", &w));
    unsetenv("DTR_TUNE");
    unsetenv("DTR_CMA");
    const size_t control = dtr__arena_used(w);
    reduce_some(w);
    const size_t staged = dtr__arena_used(w) - control;
    TH_CHECK(staged <= (size_t)256 << 10 && (th_size() == 1) == (staged == 0), "staging: %zu bytes",
             staged);
    TH_OK(dtr_world_destroy(w));
}
END_TEST

/* Whole numbers that tell giver, taker and place apart. */
static float told(int from, int to, size_t i) {
    return (float)(1000 * from + 100 * to) + (float)(i % 97);
}

/* Blocks of an odd length at addresses of any alignment, to all and from one. */
static void move_some(dtr_world *w) {
    enum { N = 50003 };
    const size_t size = (size_t)th_size();
    const int root = th_size() - 1;
    char *memory = malloc((2 * size * N + 1) * sizeof(float));
    float *in = (float *)(void *)(memory + 4), *out = in + size * N;
    dtr_group *g = dtr_world_group(w);
    for (size_t i = 0; i < size * N; i++) {
        in[i] = told(th_rank(), (int)(i / N), i % N);
        out[i] = -1;
    }
    TH_IS(dtr_alltoall(g, dtr_cpu(in, size * N, DTR_F32), dtr_cpu(out, size * N, DTR_F32), NULL,
                       NULL),
          DTR_OK);
    size_t wrong = 0;
    for (size_t i = 0; i < size * N; i++) {
        wrong += out[i] != told((int)(i / N), th_rank(), i % N);
    }
    TH_CHECK(wrong == 0, "alltoall: %zu wrong", wrong);
    TH_IS(dtr_allgather(g, dtr_cpu(in, N, DTR_F32), dtr_cpu(out, size * N, DTR_F32), NULL, NULL),
          DTR_OK);
    for (size_t i = 0; i < size * N; i++) {
        wrong += out[i] != told((int)(i / N), 0, i % N);
    }
    TH_CHECK(wrong == 0, "allgather: %zu wrong", wrong);
    TH_IS(dtr_broadcast(g, dtr_cpu(in, N, DTR_F32), root, NULL, NULL), DTR_OK);
    for (size_t i = 0; i < N; i++) {
        wrong += in[i] != told(root, 0, i);
    }
    TH_CHECK(wrong == 0, "broadcast: %zu wrong", wrong);
    free(memory);
}

/* Staging buffers written through the caches, past them, and by trial; in long chunks and short. */
START_TEST(staged_every_way) {
    static const char *const ways[] = { "stage_nontemporal=never",
                                        "stage_nontemporal=1",
                                        "stage_nontemporal=0",
                                        "stream=1",
                                        "chunk=16K",
                                        "chunk=4K" };
    wanted = "";
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
        dtr_world *w = NULL;
        setenv("DTR_TUNE", ways[way], 1);
        TH_OK(world_with("DTR_CMA", "off", &w));
        unsetenv("DTR_TUNE");
        for (int i = 0; i < 3; i++) {
            move_some(w);
        }
        reduce_some(w);
        TH_OK(dtr_world_destroy(w));
    }
}
END_TEST

/* Elements from one rank to another in round i: every other rank gives so much that its chunks are
 * short, the rest have long ones, and some give nothing to some. */
static size_t given(int from, int to, int i) {
    const size_t most = (from + i) % 2 != 0 ? 30000 : 3000;
    return (from + 2 * to + i) % 5 == 4 ? 0 : most + (size_t)(from * 7 + to * 13) % 50;
}

/* COL34: an alltoallv is cut into the chunks of each giver. */
static void exchange_uneven(dtr_world *w, float *in, float *out, int i) {
    size_t to[DTR__SHM_MAX_RANKS], from[DTR__SHM_MAX_RANKS], n_in = 0, n_out = 0, wrong = 0;
    for (int r = 0; r < th_size(); r++) {
        to[r] = given(th_rank(), r, i);
        from[r] = given(r, th_rank(), i);
        for (size_t k = 0; k < to[r]; k++) {
            in[n_in++] = told(th_rank(), r, k);
        }
        n_out += from[r];
    }
    memset(out, 0, n_out * sizeof *out);
    TH_IS(dtr_alltoallv(dtr_world_group(w), dtr_cpu(in, n_in, DTR_F32), to,
                        dtr_cpu(out, n_out, DTR_F32), from, NULL, NULL),
          DTR_OK);
    for (int r = 0; r < th_size(); r++) {
        for (size_t k = 0; k < from[r]; k++) {
            wrong += *out++ != told(r, th_rank(), k);
        }
    }
    TH_CHECK(wrong == 0, "round %d: %zu of %zu elements are wrong", i, wrong, n_out);
}

START_TEST(givers_cut_for_themselves) {
    enum { ROUNDS = 6, EACH = 30050 };
    dtr_world *w = NULL;
    float *memory = malloc(2 * (size_t)th_size() * EACH * sizeof *memory);
    wanted = "";
    setenv("DTR_TUNE", "chunk=4K", 1);
    TH_OK(world_with("DTR_CMA", "off", &w));
    unsetenv("DTR_TUNE");
    for (int i = 0; memory != NULL && i < ROUNDS; i++) {
        exchange_uneven(w, memory, memory + (size_t)th_size() * EACH, i);
        reduce_some(w);
    }
    free(memory);
    TH_OK(dtr_world_destroy(w));
    TH_AGREE();
}
END_TEST

/* What a rank gives, and the sum in the order of ranks. */
static float uneven(int rank, int i, size_t k) {
    return 1.0F / (float)(1 + (k * 7 + (size_t)rank * 3 + (size_t)i) % 1000);
}

static size_t sum_uneven(dtr_world *w, float *in, float *out, size_t n, int i) {
    size_t wrong = 0;
    for (size_t k = 0; k < n; k++) {
        in[k] = uneven(th_rank(), i, k);
    }
    TH_IS(dtr_allreduce(dtr_world_group(w), dtr_cpu(in, n, DTR_F32), dtr_cpu(out, n, DTR_F32),
                        DTR_SUM, NULL, NULL),
          DTR_OK);
    for (size_t k = 0; k < n; k++) {
        float sum = uneven(0, i, k);
        for (int r = 1; r < th_size(); r++) {
            sum += uneven(r, i, k);
        }
        wrong += memcmp(&sum, &out[k], sizeof sum) != 0;
    }
    return wrong;
}

/* COL3: node-shared results written through the caches, the others' parts or all of them past them,
 * and by trial, have the same bits; in place and not, in few pieces and many, at any address. */
START_TEST(results_every_way) {
    enum { FEW = 12003, MANY = 200003, CALLS = 8 };
    static const char *const ways[] = { "zero_nontemporal=never", "zero_nontemporal=1",
                                        "zero_nontemporal=0", "stream=1" };
    wanted = "";
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
        dtr_world *w = NULL;
        void *in = NULL, *out = NULL;
        size_t wrong = 0;
        setenv("DTR_TUNE", ways[way], 1);
        TH_OK(world_with("DTR_CMA", "off", &w));
        unsetenv("DTR_TUNE");
        TH_OK(dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, (MANY + 4) * 4, &in));
        TH_OK(dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, (MANY + 4) * 4, &out));
        for (int i = 0; i < 2 * CALLS; i++) {
            float *to = i % 4 == 3 ? in : out;
            wrong += sum_uneven(w, in, to, i < CALLS ? FEW : MANY, i);
        }
        wrong += sum_uneven(w, in, (float *)out + 1 + th_rank() % 3, MANY, 0);
        TH_CHECK(wrong == 0, "%s: %zu elements are wrong", ways[way], wrong);
        TH_AGREE();
        dtr_free(w, in);
        dtr_free(w, out);
        TH_OK(dtr_world_destroy(w));
    }
}
END_TEST

/* Too little for a rank's own block: the group does without, or is refused by name. */
START_TEST(little_control) {
    dtr_world *w = NULL;
    dtr_group_info i = DTR_GROUP_INFO_INIT;
    wanted = "DTR_SHM_CONTROL is 4096";
    TH_OK(world_with("DTR_SHM_CONTROL", "4KiB", &w));
    TH_CHECK(sum_over_ranks((uint64_t)said) == (th_size() > 1 ? 1 : 0), "said %d times", said);
    TH_IS(dtr_group_get_info(dtr_world_group(w), &i), DTR_OK);
    TH_CHECK(strcmp(i.backend, th_size() > 1 ? "cpu:mpi" : "cpu:self") == 0, "%s", i.backend);
    reduce_some(w);
    TH_OK(dtr_world_destroy(w));
    if (th_size() > 1) {
        setenv("DTR_BACKEND", "cpu:shm", 1);
        TH_STATUS(world_with("DTR_SHM_CONTROL", "4KiB", &w), DTR_ERR_UNSUPPORTED);
        unsetenv("DTR_BACKEND");
        TH_MESSAGE("are the least for");
        TH_AGREE();
    }
}
END_TEST

/* Allreduces from one place, again and again, of buffers that all ranks have mapped. */
enum { AGAIN = 5000, TIMES = 160 }; /* elements: more than a post holds, the last line is short */

typedef struct places {
    int32_t *in, *out, *further_in, *further_out, *plain_in, *plain_out;
} places;

static int32_t *shared_room(void) {
    void *p = NULL;
    TH_OK(dtr_alloc(th_world(), (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, AGAIN * sizeof(int32_t),
                    &p));
    return p;
}

static places make_places(void) {
    static int32_t in[AGAIN], out[AGAIN];
    return (places){ shared_room(), shared_room(), shared_room(), shared_room(), in, out };
}

static void free_places(const places *p) {
    dtr_free(th_world(), p->in);
    dtr_free(th_world(), p->out);
    dtr_free(th_world(), p->further_in);
    dtr_free(th_world(), p->further_out);
}

static dtr_status reduce_again(dtr_group *g, const int32_t *in, int32_t *out, dtr_op op) {
    return dtr_allreduce(g, dtr_cpu((void *)in, AGAIN, DTR_I32), dtr_cpu(out, AGAIN, DTR_I32), op,
                         NULL, NULL);
}

static void sum_again(int32_t *in, int32_t *out, int i) {
    const int n = th_size(), base = n * (n - 1) / 2 + n * i;
    int wrong = 0;
    for (int k = 0; k < AGAIN; k++) {
        in[k] = th_rank() + i + k;
    }
    TH_IS(reduce_again(th_group(), in, out, DTR_SUM), DTR_OK);
    for (int k = 0; k < AGAIN; k++) {
        wrong += out[k] != base + n * k;
    }
    TH_CHECK(wrong == 0, "call %d: %d elements are wrong", i, wrong);
}

/* WRK17: in other places, in place, some of it or all of one rank's in plain memory, somebody late.
 */
START_TEST(again_in_shared_memory) {
    const places p = make_places();
    const bool last = th_rank() == th_size() - 1;
    for (int i = 0; i < TIMES; i++) {
        const int how = i / 2 % 16;
        if (i % 32 == 7 && th_rank() == i / 32 % th_size()) {
            th_sleep(0.002);
        }
        if (how == 5) {
            sum_again(p.further_in, p.further_out, i);
        } else if (how == 7 || (how == 9 && !last && i % 2 == 0)) {
            sum_again(p.in, p.in, i);
        } else if (how == 9 && last) {
            sum_again(p.plain_in, p.plain_out, i);
        } else if (how == 11 && th_rank() == 0) {
            sum_again(p.in, p.plain_out, i);
        } else if (how == 13) {
            sum_again(p.plain_in, p.plain_out, i);
        } else if (how == 14) {
            sum_again(p.in, last ? p.in : p.further_out, i);
        } else {
            sum_again(p.in, p.out, i);
        }
    }
    TH_AGREE();
    free_places(&p);
}
END_TEST

/* DBG6: one rank asks for something else there; all say so, nothing is written. */
START_TEST(other_operator_in_shared_memory) {
    const places p = make_places();
    const bool odd = th_rank() == th_size() - 1;
    for (int i = 0; i < 20; i++) {
        sum_again(p.in, p.out, i);
    }
    memset(p.out, -1, AGAIN * sizeof *p.out);
    TH_IS(reduce_again(th_group(), p.in, p.out, odd ? DTR_MAX : DTR_SUM), DTR_ERR_MISMATCH);
    TH_MESSAGE("op");
    TH_MESSAGE("shm_ways.c:");
    TH_CHECK(p.out[0] == -1 && p.out[AGAIN - 1] == -1, "a buffer was written: %d", p.out[0]);
    TH_AGREE();
    th_good_allreduce(dtr_world_group(th_world()));
    free_places(&p);
}
END_TEST

/* WRK10: a rank that does not come; who comes late learns it at once. */
START_TEST(absent_from_shared_memory) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    const places p = make_places();
    dtr_group *g = NULL;
    o.timeout_s = 2; /* the calls before may meet a rank without a core */
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), &o, &g));
    for (int i = 0; i < 20; i++) {
        TH_IS(reduce_again(g, p.in, p.out, DTR_SUM), DTR_OK);
    }
    if (th_rank() != 0) {
        TH_IS(reduce_again(g, p.in, p.out, DTR_SUM), DTR_ERR_TIMEOUT);
        TH_MESSAGE("allreduce #21");
        TH_MESSAGE("rank 0");
    }
    th_barrier();
    TH_IS(reduce_again(g, p.in, p.out, DTR_SUM), DTR_ERR_TIMEOUT);
    TH_AGREE();
    TH_IS(dtr_group_destroy(g), DTR_OK);
    free_places(&p);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "ways", 60);
    th_add(tc, switched_off, 0, 0);
    th_add(tc, refused_on_one_rank, 0, 0);
    th_add(tc, agreed_when_on, 0, 0);
    th_add(tc, unreadable_memory, 0, 0);
    th_add(tc, thresholds_of_rank_0, 0, 0);
    th_add(tc, bad_file, 0, 0);
    th_add(tc, memory_is_bounded, 0, 0);
    th_add(tc, little_staging, 0, 0);
    th_add(tc, staged_every_way, 0, 0);
    th_add(tc, givers_cut_for_themselves, 0, 0);
    th_add(tc, results_every_way, 0, 0);
    th_add(tc, little_control, 0, 0);
    shm_ways_channels(tc);
    tc = th_case(s, "again", 60);
    th_add(tc, again_in_shared_memory, 0, 0);
    th_add(tc, other_operator_in_shared_memory, 2, 0);
    th_add(tc, absent_from_shared_memory, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "shm_ways", make);
}
