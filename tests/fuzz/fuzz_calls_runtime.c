/* Calls of the runtime, of groups and of backends with arguments of any value. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dtr/backend.h>
#include <dtr/mpi.h>
#include <dtr/nccl.h>

#include "fuzz_calls.h"

/* ---- the folder ---- */

static char folder[64], path[80];

static void remove_folder(void) {
    unlink(path);
    rmdir(folder);
}

const char *scratch_file(void) {
    static const char *const odd[] = { NULL, "", "/", "/nowhere/at/all" };
    if (folder[0] == '\0') {
        strcpy(folder, "/tmp/dtr-fuzz-XXXXXX");
        if (mkdtemp(folder) == NULL) {
            abort();
        }
        snprintf(path, sizeof path, "%s/f", folder);
        atexit(remove_folder);
    }
    return pick(4) == 0 ? odd[pick(4)] : path;
}

/* ---- constant things ---- */

static void tables(void) {
    dtr_error e = DTR_ERROR_INIT;
    dtr_status s = (dtr_status)number(30);
    e.struct_size = pick(4) == 0 ? pick(sizeof e + 1) : e.struct_size;
    judge(dtr_last_error(pick(8) == 0 ? NULL : &e));
    if (dtr_status_text(s) == NULL || dtr_status_hint(s) == NULL || dtr_status_name(s) == NULL ||
        dtr_dtype_name((dtr_dtype)number(14)) == NULL || dtr_version_string() == NULL) {
        abort();
    }
    (void)dtr_status_class(s);
    (void)dtr_dtype_size((dtr_dtype)number(14));
    (void)dtr_op_supports(operator_of(), (dtr_dtype)number(14));
    (void)dtr_device_count((dtr_device_type)number(2));
    (void)dtr_nccl_version();
    (void)dtr_version();
    dtr_call_site(pick(4) == 0 ? NULL : "somewhere.c", number(100));
    char name[300] = "";
    for (unsigned i = 0, n = pick(sizeof name); i < n; i++) {
        name[i] = (char)byte();
    }
    dtr_call_site_copy(pick(4) == 0 ? NULL : name, number(100));
}

/* ---- the world ---- */

static void numbers_of_world(const dtr_world *w) {
    (void)dtr_world_rank(w);
    (void)dtr_world_size(w);
    (void)dtr_world_local_rank(w);
    (void)dtr_world_local_size(w);
    (void)dtr_world_node(w);
    (void)dtr_world_node_count(w);
    (void)dtr_world_device(w);
    (void)dtr_world_group_count(w);
}

static void lists_of_world(dtr_world *w) {
    static const char *const texts[] = { NULL, "", "world", "a" };
    dtr_group *list[4];
    int n = 0, cap = number(5), ranks[2] = { number(1), number(1) };
    judge(dtr_world_list_groups(w, pick(8) == 0 ? NULL : list, cap > 4 ? 4 : cap,
                                pick(8) == 0 ? NULL : &n));
    (void)dtr_world_find_group(w, texts[pick(4)]);
    n = number(3);
    (void)dtr_world_find_tagged(w, texts[pick(4)], pick(8) == 0 ? NULL : ranks, n > 2 ? 2 : n);
    (void)dtr_backend_available(w, texts[pick(4)]);
    judge(dtr_world_dump(w, texts[pick(4)]));
    judge(dtr_world_progress(w));
}

static void memory_of_world(dtr_world *w) {
    static const size_t odd[] = { 0, SIZE_MAX, SIZE_MAX / 2, 4097 };
    static char foreign;
    void *p = NULL;
    dtr_device d = { (dtr_device_type)number(2), number(1) };
    judge(dtr_alloc(w, d, (dtr_mem)number(3), pick(4) == 0 ? odd[pick(4)] : byte(),
                    pick(16) == 0 ? NULL : &p));
    const char *inside = p == NULL || pick(4) == 0 ? &foreign : (char *)p + byte();
    (void)dtr_peer_pointer(w, inside, number(1));
    judge(dtr_node_barrier(w));
    if (pick(2) == 0) {
        judge(dtr_retain(w, pick(4) == 0 ? &foreign : p));
        judge(dtr_free(NULL, pick(4) == 0 ? &foreign : p));
    }
    judge(dtr_free(world, p));
    judge(dtr_free(w, pick(2) == 0 ? NULL : &foreign));
}

static void another_world(void) {
    dtr_world *w = NULL;
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.keep_mpi = true;
    o.timeout_s = seconds();
    o.device.type = (dtr_device_type)number(2);
    o.has_device = pick(4) == 0;
    o.backend = pick(4) == 0 ? "nonsense" : NULL;
    o.flags = pick(8) == 0 ? byte() : 0;
    o.struct_size = pick(4) == 0 ? byte() : o.struct_size;
    o.struct_size = o.struct_size > sizeof o ? sizeof o : o.struct_size;
    dtr_world **out = pick(8) == 0 ? NULL : &w;
    judge(pick(2) == 0
              ? dtr_world_create(&o, out)
              : dtr_world_create_from_comm(pick(4) == 0 ? MPI_COMM_NULL : MPI_COMM_SELF, &o, out));
    judge(dtr_world_destroy(w));
}

/* ---- groups ---- */

static void numbers_of_group(const dtr_group *g) {
    (void)dtr_group_rank(g);
    (void)dtr_group_size(g);
    (void)dtr_group_seq(g);
    (void)dtr_group_name(g);
    (void)dtr_group_world_rank(g, number(2));
    (void)dtr_group_rank_of(g, number(2));
    judge(dtr_group_status(g) < 0 ? DTR_OK : dtr_group_status(g));
}

static void hook(dtr_group *g, const dtr_op_report *r, void *arg) {
    (void)arg;
    if (r->kind[0] == '\0' || r->seq == 0 || !(r->duration_s >= 0) || dtr_group_size(g) < 1) {
        abort();
    }
}

static void facts_of_group(dtr_group *g) {
    dtr_group_info info = DTR_GROUP_INFO_INIT;
    dtr_group_stats stats = DTR_GROUP_STATS_INIT;
    info.struct_size = pick(4) == 0 ? pick(sizeof info + 1) : info.struct_size;
    stats.struct_size = pick(4) == 0 ? pick(sizeof stats + 1) : stats.struct_size;
    judge(dtr_group_get_info(g, pick(8) == 0 ? NULL : &info));
    judge(dtr_group_get_stats(g, pick(8) == 0 ? NULL : &stats));
    MPI_Comm comm = MPI_COMM_NULL;
    judge(dtr_group_mpi_comm(g, pick(8) == 0 ? NULL : &comm));
    judge(dtr_group_on_complete(g, pick(3) == 0 ? NULL : hook, NULL));
    judge(dtr_group_drain(g, seconds()));
    judge(dtr_group_set_timeout(g, seconds()));
    judge(dtr_group_set_timeout(g, 0.002)); /* that of its creation: receives that nobody serves */
    void *handle = NULL;
    judge(dtr_group_nccl_comm(g, (dtr_device){ (dtr_device_type)number(2), number(1) },
                              pick(8) == 0 ? NULL : &handle));
    judge(dtr_group_connect(g, (dtr_device){ (dtr_device_type)number(2), number(1) }));
}

static void barrier(dtr_group *g) {
    int missing[1], n = 0;
    judge(dtr_monitored_barrier(g, seconds(), pick(2) == 0, pick(2) == 0 ? NULL : missing,
                                pick(2) == 0 ? NULL : &n));
}

static void listed_groups(void) {
    const int a[2] = { number(1), number(1) }, b[2] = { number(1), number(1) };
    const int *const lists[2] = { a, pick(8) == 0 ? NULL : b };
    int lens[2] = { number(2), number(2) }, n = number(2), index = 0;
    dtr_group *made = NULL;
    for (int i = 0; i < 2; i++) {
        lens[i] = lens[i] > 2 ? 2 : lens[i];
    }
    judge(dtr_group_subgroups_by_list(world, pick(8) == 0 ? NULL : lists,
                                      pick(8) == 0 ? NULL : lens, n > 2 ? 2 : n, NULL,
                                      pick(8) == 0 ? NULL : &made, pick(2) == 0 ? NULL : &index));
    judge(dtr_group_destroy(made));
}

/* ---- operators ---- */

dtr_op own_operator = DTR_USER_OP; /* the last that was made, alive or not */

static void larger_bytes(void *inout, const void *in, size_t count, dtr_dtype dtype, void *arg) {
    unsigned char *x = inout;
    const unsigned char *y = in;
    (void)arg;
    for (size_t k = 0; k < count * dtr_dtype_size(dtype); k++) {
        x[k] = y[k] > x[k] ? y[k] : x[k];
    }
}

static void operators(dtr_world *w) {
    judge(dtr_op_free(w, pick(4) == 0 ? operator_of() : own_operator));
    judge(dtr_op_create(w, pick(8) == 0 ? NULL : larger_bytes, NULL, pick(2) == 0,
                        pick(8) == 0 ? NULL : &own_operator));
}

/* ---- backends ---- */

static dtr_status refuse(const dtr_backend_args *args, void **state) {
    (void)args;
    (void)state;
    return DTR_ERR_UNSUPPORTED;
}

static void backend(void) {
    static const char *const names[] = {
        NULL, "", "toy", "TOY", "mpi", "a name", "sixteen-letters-", "a;b"
    };
    dtr_backend_ops ops = DTR_BACKEND_OPS_INIT;
    ops.create = pick(4) == 0 ? NULL : refuse;
    ops.struct_size = pick(4) == 0 ? pick(sizeof ops + 1) : ops.struct_size;
    judge(dtr_backend_register(world, names[pick(8)], pick(8) == 0 ? NULL : &ops,
                               pick(4) == 0 ? byte() : DTR_BACKEND_CPU));
}

void fuzz_calls_runtime(dtr_group *g) {
    dtr_world *w = pick(16) == 0 ? NULL : world;
    switch (pick(11)) {
    case 0:
        tables();
        break;
    case 1:
        numbers_of_world(w);
        break;
    case 2:
        lists_of_world(w);
        break;
    case 3:
        memory_of_world(w);
        break;
    case 4:
        if (pick(16) == 0) { /* takes long */
            another_world();
        }
        break;
    case 5:
        numbers_of_group(g);
        break;
    case 6:
        facts_of_group(g);
        break;
    case 7:
        barrier(g);
        break;
    case 8:
        listed_groups();
        break;
    case 9:
        operators(w);
        break;
    default:
        backend();
        break;
    }
}
