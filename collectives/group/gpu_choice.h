/* What a rank says of its GPUs, and two things that follow from what all have said: which one a
 * rank takes, and whether ranks share one. Pure functions. */
#ifndef DTR_GPU_CHOICE_H
#define DTR_GPU_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

enum { DTR__GPUS = 16, DTR__GPU_UUID = 16 }; /* devices of a rank that the others are sent */

enum { DTR__ANY_DEVICE = -1, DTR__NO_GPU = -2 };

typedef struct dtr__gpu_rank {
    uint64_t host;    /* equal on ranks that could see one GPU */
    uint64_t nccl_id; /* of NCCL_HOSTID, 0: not set */
    int32_t usable;   /* CUDA is */
    int32_t nccl;     /* version, 0: cannot be used */
    int32_t devices;
    int32_t several; /* the user lets NCCL put several ranks on one GPU */
    int32_t windows; /* memory is to be made known to NCCL, which can have windows of it */
    /* Device of the world's options, or one of these. */
    int32_t named;
    unsigned char uuid[DTR__GPUS][DTR__GPU_UUID];
    uint8_t distance[DTR__GPUS]; /* from the rank's cores */
    char why[128];               /* NCCL cannot be used */
} dtr__gpu_rank;

/* Devices of a rank that the others are sent. */
static inline int dtr__gpus_listed(const dtr__gpu_rank *r) {
    return r->devices < DTR__GPUS ? r->devices : DTR__GPUS;
}

/* The device of rank `me` of `size`, which has none in its options; 0 without memory. */
int dtr__gpu_choose(const dtr__gpu_rank *rank, int size, int me);

/* What a member of a group says of the GPU that it is going to use. */
typedef struct dtr__gpu_seat {
    uint64_t host, nccl_id;         /* these */
    int32_t nccl, several, windows; /* and these as above */
    int32_t device;                 /* -1: not known, or none of those that are listed */
    int32_t rank;                   /* in the group */
    unsigned char uuid[DTR__GPU_UUID];
} dtr__gpu_seat;
/* Seats of the same GPU one after the other, of lower ranks first. */
void dtr__gpu_seats_sort(dtr__gpu_seat *seat, int n);
bool dtr__gpu_one_seat(const dtr__gpu_seat *a, const dtr__gpu_seat *b);
/* Of sorted seats the place of the lowest rank that another one shares its GPU with, -1: none has
 * to. `allowed`: the user's settings let NCCL put several ranks on one. */
int dtr__gpu_first_shared(const dtr__gpu_seat *seat, int n, bool allowed);
/* Settings with which NCCL itself puts both ranks on one GPU. */
bool dtr__gpu_wanted_by_user(const dtr__gpu_seat *a, const dtr__gpu_seat *b);

#endif /* DTR_GPU_CHOICE_H */
