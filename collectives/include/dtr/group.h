/** @file
 * Process groups: subsets of the world's ranks with their own order, communicators and sequence
 * numbers.
 *
 * NULL means "this process is not in that group": queries give -1, 0 or "", dtr_group_destroy and
 * dtr_group_release are a silent DTR_OK, every other call returns DTR_NOT_MEMBER at once, after one
 * warning for each function in a process, and touches nothing but an output handle, which becomes
 * NULL. Roots, peers and reported sources are group ranks; world ranks appear only in the lists
 * given to creation and in the two translations. */
#ifndef DTR_GROUP_H
#define DTR_GROUP_H

#include <dtr/world.h>

DTR_BEGIN_DECLS

/** How a group is made; zero means the default. */
typedef struct dtr_group_options {
    size_t struct_size; /**< set by DTR_GROUP_OPTIONS_INIT */
    double timeout_s;   /**< of operations; 0 or negative: the world's; see dtr/status.h */
    const char *name; /**< 1..63 bytes, not "world" or digits only; NULL: a number, agreed by all */
    const char *desc; /**< free text, copied */
    const char *tag;  /**< find-or-create: equal tag and rank list give the same group again */
    const char *backend; /**< "cpu:mpi"; NULL: the world's */
    dtr_device device;   /**< read when has_device; else the world's */
    bool has_device;
    bool local_sync;    /**< creation involves the listed ranks only */
    bool deterministic; /**< same bits on every backend and node layout: rank-order reduction */
    uint32_t flags;     /**< none defined: 0 */
    int nan_check;      /**< 1 on, -1 off, 0: DTR_NAN_CHECK */
    int nccl_min_ctas, nccl_max_ctas, nccl_cga_cluster; /**< 0: NCCL's own */
    bool reproducible; /**< deterministic, and sums of floats have the same bits in any order of
                          ranks: SUM, AVG and PREMUL_SUM of each element are exact and rounded once.
                          Device buffers travel through host memory, or are refused where the
                          backend names nccl */
    /** How NCCL is to run for this group (its ncclConfig_t), the same on all members; 0: its own
     * choice. What the NCCL of the process does not know yet has no effect, and rank 0 says so at
     * level info. */
    int nccl_cta_policy;      /**< 1 efficiency, 2 copy engines (2.28), 3 both; NCCL 2.27 */
    int nccl_nvls_ctas;       /**< thread blocks of NVLink SHARP; NCCL 2.27 */
    int nccl_traffic_class;   /**< of the network; NCCL 2.26 */
    const char *nccl_network; /**< name of its network, 1..63 bytes, as "Socket" or "IB" */
    int nccl_stream_priority; /**< 1 high, -1 normal, 0: DTR_STREAM_PRIORITY */
    bool nccl_split_share;    /**< groups split from this one share its resources; when one of them
                                 breaks the others may be of no use either */
} dtr_group_options;
#ifdef __cplusplus
#define DTR_GROUP_OPTIONS_INIT                                                                     \
    {                                                                                              \
        sizeof(dtr_group_options), 0, 0, 0, 0, 0, { DTR_CPU, 0 }, false, false, false, 0, 0, 0, 0, \
            0, false, 0, 0, 0, 0, 0, false                                                         \
    }
#else
#define DTR_GROUP_OPTIONS_INIT \
    { .struct_size = sizeof(dtr_group_options) }
#endif

/** The whole record of a group; pointers live as long as the group. */
typedef struct dtr_group_info {
    size_t struct_size; /**< set by DTR_GROUP_INFO_INIT */
    const char *name, *desc, *tag;
    const char *backend_asked; /**< lower case, "cpu:auto,cuda:auto" when nothing was asked */
    const char *backend;       /**< what was chosen, "cpu:mpi" */
    int rank, size;
    const int *world_ranks;               /**< [size], in group-rank order */
    double timeout_cpu_s, timeout_cuda_s; /**< INFINITY: none */
    uint64_t seq;
    dtr_status status; /**< DTR_OK, or the error that broke the group */
} dtr_group_info;
#ifdef __cplusplus
#define DTR_GROUP_INFO_INIT \
    { sizeof(dtr_group_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, DTR_OK }
#else
#define DTR_GROUP_INFO_INIT \
    { .struct_size = sizeof(dtr_group_info) }
#endif

/** One operation of a group: its number, kind ("allreduce", "" where there is none or the flight
 * recorder has written over it) and elements. Its size is fixed. */
typedef struct dtr_op_mark {
    uint64_t seq;
    const char *kind;
    size_t count_in, count_out;
    uint64_t reserved[2]; /**< 0; room for more */
} dtr_op_mark;

/** What a group has done on this rank. */
typedef struct dtr_group_stats {
    size_t struct_size;                     /**< set by DTR_GROUP_STATS_INIT */
    dtr_op_mark issued, started, finished;  /**< the last of each */
    uint64_t errors;                        /**< operations that ended with an error */
    uint64_t comms_by_split, comms_by_init; /**< NCCL communicators made, and how */
    uint64_t helpers_left; /**< threads left behind in an NCCL call that does not return; the
                              world's group counts those of destroyed groups too */
    /** With DTR_NCCL_REGISTER=1, blocks of device memory that the communicators know: registered by
     * ncclCommRegister, and as windows; once for each communicator. */
    uint64_t blocks_registered, blocks_windows;
} dtr_group_stats;
#ifdef __cplusplus
#define DTR_GROUP_STATS_INIT                                                         \
    {                                                                                \
        sizeof(dtr_group_stats), { 0, 0, 0, 0, { 0, 0 } }, { 0, 0, 0, 0, { 0, 0 } }, \
            { 0, 0, 0, 0, { 0, 0 } }, 0, 0, 0, 0, 0, 0                               \
    }
#else
#define DTR_GROUP_STATS_INIT \
    { .struct_size = sizeof(dtr_group_stats) }
#endif

/** An operation that has ended on this rank. The library makes these; texts live as long as the
 * call that brings them. */
typedef struct dtr_op_report {
    size_t struct_size; /**< of this library: what it has filled */
    const char *kind;   /**< "allreduce"; of a scope "coalesced", or "coalesced_p2p" */
    const char *label;  /**< of its options, "" where there is none */
    uint64_t seq;       /**< as dtr_work_seq */
    dtr_status status;  /**< final */
    int peer;           /**< root, or the other rank of a message (who it came from); -1: none */
    size_t nbytes;     /**< the larger of input and output here; of a scope or batch all together */
    int64_t issued_ns; /**< the call, on CLOCK_MONOTONIC within a microsecond */
    double duration_s; /**< as dtr_work_duration */
} dtr_op_report;

/** For dtr_group_split: in no group, as any negative colour. */
#define DTR_COLOR_NONE (-1)

/** The world's own group: all ranks, owned by the world, the same handle for the world's life; NULL
 * for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_group *dtr_world_group(dtr_world *world);

/** Make a group of the listed world ranks; group rank i is world_ranks[i]. Ranks not listed get
 * NULL and DTR_OK. NULL with n = world size stands for all ranks. Nothing is created, and no name
 * used, when the call fails anywhere.
 *  @collective all ranks of the world, members or not, in the same order; with local_sync the
 * listed ranks only
 *  @blocking until all callers have entered, up to the group's timeout
 *  @gpu with has_device NCCL is set up here
 *  @errors DTR_ERR_ARG, DTR_ERR_RANK, DTR_ERR_STATE (name in use), DTR_ERR_UNSUPPORTED (backend),
 * all before anything is sent; agreed: DTR_ERR_MISMATCH (callers differ), DTR_ERR_TIMEOUT
 * (naming who is missing), DTR_ERR_REMOTE
 *  @since 0.1 */
DTR_API dtr_status dtr_group_create(dtr_world *world, const int *world_ranks, int n,
                                    const dtr_group_options *options, dtr_group **group);

/** Split a group: callers with equal colour form a group, ordered by key, then by rank in the
 * parent. A negative colour gives NULL and DTR_OK.
 *  @collective all ranks of the parent  @blocking as dtr_group_create
 *  @gpu as dtr_group_create  @errors as dtr_group_create  @since 0.1 */
DTR_API dtr_status dtr_group_split(dtr_group *parent, int color, int key,
                                   const dtr_group_options *options, dtr_group **group);

/** Finish the group's operations, remove its name and tag, free it; a tagged group loses one
 * reference. The handle stays recognisable (DTR_ERR_STATE) until its world is destroyed or 1,024
 * further groups of it have been. On a broken group it is local and quick.
 *  @collective all members
 *  @blocking until its operations have finished, up to the group's timeout
 *  @gpu waits for its streams
 *  @errors DTR_ERR_ARG (the world's own group), DTR_ERR_STATE (destroyed before; a graph of CUDA
 * holds operations of it on this rank, and it stays as it is), DTR_ERR_TIMEOUT (unfinished work was
 * aborted, or a thread hangs inside the group's transport, which breaks this rank's other groups
 * too; the handle is gone all the same)
 *  @since 0.1 */
DTR_API dtr_status dtr_group_destroy(dtr_group *group);

/** Change the time limit of the group's later operations on this rank, on CUDA buffers too, and of
 * what waits for the group (dtr_group_drain, dtr_group_destroy); those under way keep theirs. Read
 * as that of dtr_group_options: 0 or negative is the world's, as given when that was made. Groups
 * made of this one later begin with it; the own groups of DDP modules, made before, keep what they
 * have. Other ranks keep their limits: the one that passes first breaks the group on all.
 *  @collective no; any thread  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (not a number), DTR_ERR_STATE (destroyed)  @since 0.2 */
DTR_API dtr_status dtr_group_set_timeout(dtr_group *group, double timeout_s);

/** Let go of the group without the other members, who may go on with it: the handle, name and tag
 * are gone here at once, as by dtr_group_destroy, and unfinished operations of this rank go on; a
 * tagged group loses one reference. The group is taken down when all members have released or
 * destroyed it, in any order, by this rank's next call that makes, ends or uses a group, or with
 * its world. Members that stay can exchange messages among themselves; a collective that this rank
 * has not called before ends with DTR_ERR_MISMATCH naming it, and breaks the group. A message to or
 * from this rank that it has not called ends at its limit. dtr_group_destroy counts a member that
 * has released the group as come, and waits for its unfinished operations.
 *  @collective no; each member when it likes, in any order relative to other groups
 *  @blocking no  @gpu no; streams must not start operations of the group later (graphs)
 *  @errors DTR_ERR_ARG (the world's own group), DTR_ERR_STATE (destroyed or released before)
 *  @since 0.2 */
DTR_API dtr_status dtr_group_release(dtr_group *group);

/** Break the group: its unfinished works end with DTR_ERR_ABORTED and `reason`, later calls return
 * the same. The first reason stays.
 *  @collective no; any thread, one rank is enough  @blocking no  @gpu no
 *  @errors DTR_ERR_STATE (destroyed before)  @since 0.1 */
DTR_API dtr_status dtr_group_abort(dtr_group *group, const char *reason);

/** Rank of this process in the group, -1 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API int dtr_group_rank(const dtr_group *group);

/** Number of members, -1 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API int dtr_group_size(const dtr_group *group);

/** World rank of a group rank, the inverse of dtr_group_rank_of; -1 when out of range and for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API int dtr_group_world_rank(const dtr_group *group, int group_rank);

/** Group rank of a world rank, the inverse of dtr_group_world_rank; -1 when it is not in the group
 * and for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API int dtr_group_rank_of(const dtr_group *group, int world_rank);

/** Collectives started so far: equal on all members after the same calls. Rejected calls, point to
 * point, byte-string send/recv and group creation do not count. 0 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API uint64_t dtr_group_seq(const dtr_group *group);

/** Name of the group, "" for NULL and destroyed groups.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API const char *dtr_group_name(const dtr_group *group);

/** DTR_OK, or the error that broke the group; DTR_NOT_MEMBER for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_status dtr_group_status(const dtr_group *group);

/** Copy the record of a group; only the leading struct_size bytes of `info` are written.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL info, struct_size 0), DTR_ERR_STATE (destroyed)  @since 0.1 */
DTR_API dtr_status dtr_group_get_info(const dtr_group *group, dtr_group_info *info);

/** Copy what the group has done on this rank; only the leading struct_size bytes of `stats` are
 * written.
 *  @collective no; any thread  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL stats, struct_size 0), DTR_ERR_STATE (destroyed)  @since 0.1 */
DTR_API dtr_status dtr_group_get_stats(const dtr_group *group, dtr_group_stats *stats);

/** Call fn(group, report, arg) for every operation of the group that ends on this rank from now on,
 * once it has its final status: blocking and asynchronous ones, with success or failure, a batch or
 * a coalescing scope as one. What takes no number is none: refused calls, messages to
 * DTR_PEER_NONE, monitored barriers; nor are the parts of captured graphs. A blocking call returns,
 * and a work is complete, when fn has. It runs where the callbacks of dtr_work_on_complete do,
 * before them, on several threads at once if it comes so, and may do what they may. One hook a
 * group: another fn takes the place of the first, NULL takes it off; a call that has begun may
 * still be running then, which dtr_group_drain waits for. Not inherited: groups made of this one,
 * that of a DDP module too, begin without. Small blocking calls cost more while a hook is set, and
 * nothing while none is.
 *  @collective no; any thread  @blocking no  @gpu operations are reported when the host sees their
 * end
 *  @errors DTR_ERR_STATE (destroyed)  @since 0.2 */
DTR_API dtr_status dtr_group_on_complete(dtr_group *group,
                                         void (*fn)(dtr_group *group, const dtr_op_report *report,
                                                    void *arg),
                                         void *arg);

/** Wait until no work of the group is unfinished on this rank and no callback is running.
 * timeout_s as in dtr/status.h: negative the group's; 0 one look, DTR_IN_PROGRESS if something is
 * left.
 *  @collective no  @blocking until then; a positive limit that passes breaks the group
 *  @gpu waits for works on devices too, without a blocking CUDA call
 *  @errors DTR_ERR_ARG (not a number), DTR_ERR_STATE (inside a callback, open scope),
 * DTR_ERR_TIMEOUT, the error of a broken group
 *  @since 0.1 */
DTR_API dtr_status dtr_group_drain(dtr_group *group, double timeout_s);

/** Set up now what the first operation on buffers of `device` would: the NCCL communicator of all
 * members or, where operations go through the host, the pinned memory of those that travel in
 * pieces. Nothing where that is done.
 *  @collective all members, each with its own device
 *  @blocking until all have come, up to DTR_NCCL_INIT_TIMEOUT, else the group's limit
 *  @gpu makes NCCL's communicator and a stream; needed before a graph is captured
 *  @errors DTR_ERR_DEVICE (no such device, or not the group's own), DTR_ERR_STATE (inside a
 * callback or an open scope), DTR_ERR_NOMEM; those of NCCL, DTR_ERR_TIMEOUT and DTR_ERR_REMOTE
 * break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_group_connect(dtr_group *group, dtr_device device);

/** Cut the parent's rank order into chunks of `size`; the caller gets its own chunk's group and
 * index. Beyond what dtr_group_split does, all ranks must give the same size, and a name gets the
 * index: "name.0".
 *  @collective all ranks of the parent  @blocking as dtr_group_create
 *  @gpu size 0 means the number of visible CUDA devices
 *  @errors as dtr_group_create; DTR_ERR_ARG when size is negative, above the parent's size or no
 * divisor of it
 *  @since 0.1 */
DTR_API dtr_status dtr_group_subgroups(dtr_group *parent, int size,
                                       const dtr_group_options *options, dtr_group **mine,
                                       int *index);

/** Make one group per list of world ranks, all or none; a rank in no list gets NULL, index -1 and
 * DTR_OK. All ranks give the same lists, which are compared; with dtr_group_split each
 * knows its own colour only.
 *  @collective all ranks of the world  @blocking as dtr_group_create
 *  @gpu as dtr_group_create  @errors as dtr_group_create; DTR_ERR_ARG for a rank in two lists
 *  @since 0.1 */
DTR_API dtr_status dtr_group_subgroups_by_list(dtr_world *world, const int *const *lists,
                                               const int *lens, int n_lists,
                                               const dtr_group_options *options, dtr_group **mine,
                                               int *index);

/** Whether groups of this world can choose a backend by that name (any case); NULL world: the
 * built-in ones. A fact of the build, not of the hardware found: where "nccl" is, there may be no
 * GPU (dtr_device_count) and no NCCL to load (dtr_nccl_version).
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API bool dtr_backend_available(const dtr_world *world, const char *name);

DTR_END_DECLS

#endif /* DTR_GROUP_H */
