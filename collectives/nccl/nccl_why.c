/* dtr-info --why for device buffers: the choice that a group would make, told. */
#include <stdio.h>
#include <string.h>

#include "nccl/nccl_internal.h"

static int none(const char *status, const char *why) {
    printf("none is chosen: the call would be refused with %s: %s\n", status, why);
    return 1;
}

/* What NCCL would know of memory, were it told. */
static void print_memory(const dtr__nccl_ops *ops) {
    printf("  memory with DTR_NCCL_REGISTER=1: %s\n",
           ops->windows()     ? "blocks are registered, buckets of DDP are windows of NCCL too"
           : ops->registers() ? "blocks are registered; windows need NCCL 2.27"
                              : "as without it, which needs NCCL 2.19");
}

int dtr__device_why(dtr_group *g, const dtr__call *c, const char *wanted, bool one_gpu) {
    const dtr__nccl_library *l = dtr__nccl_get();
    struct dtr__nccl n = { .group = g, .ops = one_gpu && g->size > 1 ? NULL : l->ops };
    const char *why = "";
    char text[DTR__CUDA_TEXT];
    bool stage = strcmp(wanted, "stage") == 0, nccl = strcmp(wanted, "nccl") == 0;
    g->cuda_use = (char)(stage ? 's' : nccl ? 'n' : 'a');
    g->nccl = &n;
    snprintf(n.reason, sizeof n.reason, "%s",
             l->ops != NULL ? "NCCL puts no two ranks on one GPU" : l->reason);
    if (dtr__cuda_get()->state != DTR__CUDA_OK) {
        return none("DTR_ERR_DEVICE", dtr__cuda_text(text));
    }
    bool can = dtr__nccl_serves(g, c, &why), moved = dtr__nccl_alone(g);
    printf("  nccl   %s%s\n", can ? "can serve it" : "cannot: ", can ? "" : why);
    printf("  stage  can serve it, through host memory\n");
    if (can && !moved) {
        print_memory(l->ops);
    }
    if (nccl && !can) {
        return none("DTR_ERR_UNSUPPORTED", "nccl is named, and what is named never falls back");
    }
    printf("%s is chosen: %s\n", dtr__device_backend(g, c, &why),
           stage || nccl ? "it is named"
           : !can        ? "nccl cannot; the group's first rank warns once"
           : moved       ? "one rank needs a copy on its stream, and not NCCL itself"
                         : "every rank has a GPU of its own, as far as is known here");
    return 0;
}
