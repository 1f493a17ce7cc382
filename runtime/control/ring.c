/* The ring of nodes. From a node any other is reached over at most about lg(n) / 2 others, by going
 * to the neighbour that is nearest to it; and to cut a node off all of its 2 lg(n) neighbours have
 * to die at once. */
#include "ring.h"

static int ahead(int n, int from, int to) {
    return to >= from ? to - from : to - from + n;
}

int dtr__ring_distance(int n, int a, int b) {
    const int there = ahead(n, a, b), back = ahead(n, b, a);
    return there < back ? there : back;
}

bool dtr__ring_is_near(int n, int a, int b) {
    const int d = dtr__ring_distance(n, a, b);
    return d != 0 && (d & (d - 1)) == 0;
}

/* From -(n - 1) / 2 to n / 2. */
static int offset(int n, int from, int to) {
    const int d = ahead(n, from, to);
    return d <= n / 2 ? d : d - n;
}

/* A binomial tree on either side: who is d away passes it on by steps shorter than the last of
 * those that d is the sum of. */
bool dtr__ring_passes_on(int n, int from, int me, int to) {
    const int at = offset(n, from, me), next = offset(n, from, to);
    const int d = at < 0 ? -at : at, further = at < 0 ? -next : next;
    const int step = further - d;
    return at == 0 || (step > 0 && (step & (step - 1)) == 0 && step < (d & -d));
}

static int add(int *near, int n_near, int node) {
    for (int i = 0; i < n_near; i++) {
        if (near[i] == node) {
            return n_near;
        }
    }
    near[n_near] = node;
    return n_near + 1;
}

int dtr__ring_neighbours(int n, int me, dtr__ring_out is_out, const void *arg, int *near) {
    int n_near = 0;
    for (int step = 1; step <= n / 2; step *= 2) {
        for (int forward = 0; forward < 2; forward++) {
            int d = step;
            int at = (int)(((long)me + (forward ? d : n - d)) % n);
            while (d < n && is_out(arg, at)) {
                d++;
                at = (int)(((long)me + (forward ? d : n - d)) % n);
            }
            n_near = d < n ? add(near, n_near, at) : n_near;
        }
    }
    return n_near;
}
