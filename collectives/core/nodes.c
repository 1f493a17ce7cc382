/* Which members of a group are on which node. */
#include "core/nodes.h"

#include <stdlib.h>
#include <string.h>

static int node_of(const dtr_group *group, int member) {
    return group->world->node_of[group->world_ranks[member]];
}

static int highest_node(const dtr_group *group) {
    int highest = 0;
    for (int i = 0; i < group->size; i++) {
        highest = node_of(group, i) > highest ? node_of(group, i) : highest;
    }
    return highest;
}

/* Numbers the nodes in `number`, which is 0; returns how many there are. */
static int number_nodes(const dtr_group *group, int *number, bool *contiguous) {
    int n = 0, last = -1;
    *contiguous = true;
    for (int i = 0; i < group->size; i++) {
        const int node = node_of(group, i);
        *contiguous = *contiguous && (node == last || number[node] == 0);
        number[node] = number[node] == 0 ? ++n : number[node];
        last = node;
    }
    return n;
}

/* Counts the ranks of each node, and gives those that do not follow each other their places. */
static void number_members(const dtr_group *group, dtr__nodes *nodes) {
    int *const count = nodes->first + 1; /* ends of the nodes, once they are summed up */
    for (int i = 0; i < group->size; i++) {
        const int of = dtr__nodes_of(nodes, i), place = count[of]++;
        if (!nodes->contiguous) {
            nodes->place[i] = place;
        }
    }
    nodes->least = count[0];
    for (int d = 1; d < nodes->n; d++) {
        nodes->least = count[d] < nodes->least ? count[d] : nodes->least;
        count[d] += count[d - 1];
    }
    for (int i = 0; i < group->size && !nodes->contiguous; i++) {
        nodes->member[nodes->first[dtr__nodes_of(nodes, i)] + nodes->place[i]] = i;
    }
}

bool dtr__nodes_new(const dtr_group *group, dtr__nodes **result) {
    const size_t numbers = (size_t)highest_node(group) + 1, size = (size_t)group->size;
    dtr__nodes *nodes = calloc(1, sizeof *nodes + numbers * sizeof *nodes->number);
    *result = NULL;
    if (nodes == NULL) {
        return false;
    }
    nodes->in = group->world->node_of;
    nodes->ranks = group->world_ranks;
    nodes->number = (int *)(nodes + 1);
    nodes->n = number_nodes(group, nodes->number, &nodes->contiguous);
    if (nodes->n == 1 || nodes->n == group->size) {
        free(nodes);
        return true;
    }
    const size_t more = (size_t)nodes->n + 1 + (nodes->contiguous ? 0 : 2 * size);
    dtr__nodes *whole = realloc(nodes, sizeof *nodes + (numbers + more) * sizeof *nodes->number);
    if (whole == NULL) {
        free(nodes);
        return false;
    }
    whole->number = (int *)(whole + 1);
    whole->first = whole->number + numbers;
    memset(whole->first, 0, more * sizeof *whole->first);
    if (!whole->contiguous) {
        whole->place = whole->first + whole->n + 1;
        whole->member = whole->place + size;
    }
    number_members(group, whole);
    *result = whole;
    return true;
}
