/* Point to point: a token travels once around the ring, every rank adds its number; then all ranks
 * pass their number to the right at the same time with a batch. Run: mpirun -n 3 ./ring */
#include <stdio.h>

#include <dtr/dtr.h>

enum { TOKEN = 7, SHIFT = 8 }; /* tags */

/* Rank 0 starts the token and receives it back; every other rank receives, adds, sends on. */
static dtr_status pass_token(dtr_group *g, int rank, int size, int64_t *token) {
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    dtr_buffer buf = dtr_cpu(token, 1, DTR_I64);
    dtr_status s = DTR_OK;
    if (rank == 0) {
        *token = 0;
        s = dtr_send(g, buf, right, TOKEN, NULL, NULL);
        return DTR_FAILED(s) ? s : dtr_recv(g, buf, left, TOKEN, NULL, NULL);
    }
    s = dtr_recv(g, buf, left, TOKEN, NULL, NULL);
    *token += rank;
    return DTR_FAILED(s) ? s : dtr_send(g, buf, right, TOKEN, NULL, NULL);
}

static dtr_status shift(dtr_group *g, int rank, int size, const double *out, double *in) {
    dtr_p2p ops[] = {
        { true, dtr_cpu_in(out, 1, DTR_F64), (rank + 1) % size, SHIFT },
        { false, dtr_cpu(in, 1, DTR_F64), (rank + size - 1) % size, SHIFT },
    };
    return dtr_batch_p2p(g, ops, 2, NULL, NULL);
}

int main(void) {
    dtr_world *world = NULL;
    if (DTR_FAILED(dtr_world_create(NULL, &world))) {
        fprintf(stderr, "%s\n", dtr_last_error_message());
        return 1;
    }
    dtr_group *g = dtr_world_group(world);
    int rank = dtr_world_rank(world), size = dtr_world_size(world);
    int64_t token = 0;
    double mine = rank, got = -1;
    /* One rank has no neighbour to send to, but a batch may hold a send to oneself. */
    dtr_status s = size > 1 ? pass_token(g, rank, size, &token) : DTR_OK;
    if (!DTR_FAILED(s)) {
        s = shift(g, rank, size, &mine, &got);
    }
    if (DTR_FAILED(s)) {
        fprintf(stderr, "%s\n", dtr_last_error_message());
    } else if (rank == 0) {
        printf("the token came back with %lld, want %d\n", (long long)token, size * (size - 1) / 2);
        printf("rank 0 got %g from its left neighbour, want %d\n", got, (size - 1) % size);
    }
    bool right = !DTR_FAILED(s) && got == (rank + size - 1) % size &&
                 (rank != 0 || token == (int64_t)size * (size - 1) / 2);
    dtr_world_destroy(world);
    return right ? 0 : 1;
}
