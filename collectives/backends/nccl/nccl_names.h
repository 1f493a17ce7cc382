/* Functions that everything that calls NCCL looks up: the backend, and what measures beside it. */
#ifndef DTR_NCCL_NAMES_H
#define DTR_NCCL_NAMES_H

#define DTR__NCCL_COMMON(X)   \
    X(ncclGetVersion)         \
    X(ncclGetUniqueId)        \
    X(ncclCommInitRankConfig) \
    X(ncclCommDestroy)        \
    X(ncclCommAbort)          \
    X(ncclGetErrorString)     \
    X(ncclGroupStart)         \
    X(ncclGroupEnd)           \
    X(ncclAllReduce)          \
    X(ncclBroadcast)          \
    X(ncclReduce)             \
    X(ncclAllGather)          \
    X(ncclReduceScatter)      \
    X(ncclSend)               \
    X(ncclRecv)

/* Y(function, short name, version): used from that version on, where it is found. */
#define DTR__NCCL_LATER(Y)                               \
    Y(ncclMemAlloc, MemAlloc, 21900)                     \
    Y(ncclMemFree, MemFree, 21900)                       \
    Y(ncclCommRegister, CommRegister, 21900)             \
    Y(ncclCommDeregister, CommDeregister, 21900)         \
    Y(ncclCommWindowRegister, WindowRegister, 22700)     \
    Y(ncclCommWindowDeregister, WindowDeregister, 22700) \
    Y(ncclAlltoAll, AlltoAll, 22800)                     \
    Y(ncclGather, Gather, 22800)                         \
    Y(ncclScatter, Scatter, 22800)

#endif /* DTR_NCCL_NAMES_H */
