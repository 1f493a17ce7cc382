/* Messages over TCP, between world ranks on the channel of a group; and what went wrong, either
 * way. */
#include "core/work.h"
#include "mpi_internal.h"

_Static_assert(MPI_ANY_SOURCE < 0 && MPI_ANY_TAG < 0, "any is negative, as for TCP");

int dtr__transport_tcp_send(const dtr_group *g, const void *data, int nbytes, int peer, int tag,
                            dtr__send_mode mode, dtr__pending *r) {
    return dtr__tcp_send(g->world->mpi.tcp, g->backends.channel, g->world_ranks[peer], tag, data,
                         (size_t)nbytes, (dtr__tcp_mode)mode, &r->tcp);
}

static int from(const dtr_group *g, int peer) {
    return peer < 0 ? DTR__TCP_ANY : g->world_ranks[peer];
}

static int any(int tag) {
    return tag < 0 ? DTR__TCP_ANY : tag;
}

int dtr__transport_tcp_recv(const dtr_group *g, void *data, int nbytes, int peer, int tag,
                            dtr__pending *r) {
    return dtr__tcp_recv(g->world->mpi.tcp, g->backends.channel, from(g, peer), any(tag), data,
                         (size_t)nbytes, &r->tcp);
}

int dtr__transport_tcp_probe(const dtr_group *g, int peer, int tag, int *there, dtr__arrival *a) {
    dtr__tcp_poll(g->world->mpi.tcp);
    *there =
        dtr__tcp_probe(g->world->mpi.tcp, g->backends.channel, from(g, peer), any(tag), &a->tcp);
    return MPI_SUCCESS;
}

int dtr__transport_tcp_take(const dtr_group *g, const dtr__arrival *a, void *data, int nbytes,
                            dtr__pending *r) {
    return dtr__tcp_recv(g->world->mpi.tcp, g->backends.channel, a->tcp.source, a->tcp.tag, data,
                         (size_t)nbytes, &r->tcp);
}

int dtr__transport_tcp_take_all(const dtr_group *g, const dtr__arrival *a, void *data, int nbytes) {
    dtr__pending r = DTR__NO_PENDING;
    dtr__arrival taken;
    int complete = 0, code = dtr__transport_tcp_take(g, a, data, nbytes, &r);
    while (code == MPI_SUCCESS && !complete) { /* only another thread's poll delays it */
        code = dtr__transport_test(g, &r, &complete, &taken);
    }
    return code;
}

static void test_some_of_mpi(dtr__pending *const *r, int n, int *codes, dtr__arrival *a) {
    MPI_Request requests[DTR__TRANSPORT_SOME];
    MPI_Status statuses[DTR__TRANSPORT_SOME];
    int places[DTR__TRANSPORT_SOME], n_complete = 0, code = MPI_SUCCESS, class = MPI_SUCCESS;
    for (int i = 0; i < n; i++) {
        requests[i] = r[i]->mpi;
    }
    /* Open MPI looks at what has come after it has found none complete, and leaves it at that. */
    for (int i = 0; i < 2 && code == MPI_SUCCESS && n_complete <= 0; i++) {
        code = DTR_INSIDE(MPI_Testsome, n, requests, &n_complete, places, statuses);
    }
    if (code != MPI_SUCCESS) {
        MPI_Error_class(code, &class);
    }
    if (code != MPI_SUCCESS && class != MPI_ERR_IN_STATUS) {
        codes[0] = code;
        return;
    }
    for (int i = 0; i < n_complete; i++) {
        const int at = places[i];
        r[at]->mpi = MPI_REQUEST_NULL;
        a[at].mpi = statuses[i];
        codes[at] = class == MPI_ERR_IN_STATUS ? statuses[i].MPI_ERROR : MPI_SUCCESS;
    }
}

void dtr__transport_test_some(const dtr_group *g, dtr__pending *const *r, int n, int *codes,
                              dtr__arrival *a) {
    dtr__tcp *tcp = g->world->mpi.tcp;
    int complete = 0;
    for (int i = 0; i < n; i++) {
        codes[i] = MPI_SUCCESS;
    }
    if (n > 1 && tcp == NULL) {
        test_some_of_mpi(r, n, codes, a);
        return;
    }
    for (int i = 0; i < n; i++) {
        codes[i] = i == 0 ? dtr__transport_test(g, r[i], &complete, &a[i])
                          : dtr__tcp_look(tcp, &r[i]->tcp, &complete, &a[i].tcp);
    }
}

dtr_status dtr__transport_failed(const dtr_work *w, int code, const char *what) {
    dtr__error_context ctx = dtr__work_context(w);
    dtr__tcp *tcp = w->group->world->mpi.tcp;
    return tcp != NULL ? dtr__tcp_failed(tcp, &ctx, code)
                       : dtr__error_mpi(&ctx, code, what, __FILE__, __LINE__);
}
