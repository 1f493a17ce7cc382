/** @file
 * The world: all ranks that started together, bootstrapped over MPI, or by put and get.
 *
 * A world owns everything the library starts: its communicators, threads, memory and groups.
 * Several worlds may live at once; each has its own groups, names, settings and sequence numbers.
 * They share what a process has one of: MPI, CUDA, the handler of DTR_DUMP_SIGNAL. */
#ifndef DTR_WORLD_H
#define DTR_WORLD_H

#include <dtr/device.h>

DTR_BEGIN_DECLS

/** How processes that no mpirun has started find each other: through a store that all of them
 * reach, such as torchrun's or a folder. A world of these ranks uses no MPI at all. */
typedef struct dtr_bootstrap {
    size_t struct_size; /**< set by DTR_BOOTSTRAP_INIT */
    int rank, size;     /**< of this process, and of the world: 0 to size - 1, each once */
    const char *prefix; /**< of its keys, 40 bytes at most; NULL: "dtr". One world uses it once. */
    /** put: keys of 1 to 63 bytes, values up to 4096. get: waits up to timeout_s seconds for a key
     * (DTR_ERR_TIMEOUT; dtr/status.h), copies at most cap bytes and sets *nbytes to the value's
     * length. Both take `arg`, and are called inside dtr_world_create only. */
    void *arg;
    dtr_status (*put)(void *arg, const char *key, const void *value, size_t nbytes);
    dtr_status (*get)(void *arg, const char *key, void *value, size_t cap, size_t *nbytes,
                      double timeout_s);
} dtr_bootstrap;
#ifdef __cplusplus
#define DTR_BOOTSTRAP_INIT \
    { sizeof(dtr_bootstrap), 0, 0, 0, 0, 0, 0 }
#else
#define DTR_BOOTSTRAP_INIT \
    { .struct_size = sizeof(dtr_bootstrap) }
#endif

typedef struct dtr_world_options {
    size_t struct_size;  /**< set by DTR_WORLD_OPTIONS_INIT */
    double timeout_s;    /**< of operations; 0 or negative: DTR_TIMEOUT, else 1800 s on CPU */
    const char *backend; /**< "cpu:mpi"; NULL: DTR_BACKEND, else "cpu:auto,cuda:auto" */
    dtr_device device;   /**< this rank's compute device, read when has_device */
    bool has_device;
    bool keep_mpi; /**< leave MPI initialised at destroy, so that a later create works */
    /** NULL: stderr or DTR_LOG_FILE. Called on any thread of the process, one line at a time. */
    void (*log_fn)(void *arg, int level, const char *line);
    void *log_arg;  /**< its first argument */
    uint32_t flags; /**< none defined: 0 */
    /** NULL: MPI. Read by dtr_world_create only, which then leaves MPI alone. */
    const dtr_bootstrap *bootstrap;
} dtr_world_options;
#ifdef __cplusplus
#define DTR_WORLD_OPTIONS_INIT \
    { sizeof(dtr_world_options), 0, 0, { DTR_CPU, 0 }, false, false, 0, 0, 0, 0 }
#else
#define DTR_WORLD_OPTIONS_INIT \
    { .struct_size = sizeof(dtr_world_options) }
#endif

/** Levels given to log_fn. */
enum { DTR_LOG_ERROR = 0, DTR_LOG_WARN = 1, DTR_LOG_INFO = 2, DTR_LOG_DEBUG = 3 };

/** Create a world over MPI_COMM_WORLD; initialises MPI (thread multiple) when nobody has. Without
 * mpirun it has one rank; where a launcher says that it has started more (DTR_LAUNCHER_CHECK), this
 * is warned about. With options.bootstrap its ranks are those that it says, between nodes they use
 * TCP, and MPI is neither initialised nor called, then or later. `options` may be NULL. On failure
 * `*world` is untouched and nothing is left running, except that MPI stays initialised: the call
 * may be tried again, and the next dtr_world_destroy, or the program, finalises it.
 *  @collective all ranks of MPI_COMM_WORLD, or of the bootstrap
 *  @blocking until all ranks have entered
 *  @gpu picks this rank's device, creates no context on others
 *  @errors DTR_ERR_ARG, DTR_ERR_DEVICE, DTR_ERR_STATE (MPI already finalised; with
 * DTR_LAUNCHER_CHECK=error fewer ranks than were started), DTR_ERR_MPI, DTR_ERR_NOMEM,
 * DTR_ERR_SYSTEM, DTR_ERR_UNSUPPORTED (MPI's tags end too early; without MPI: ranks of a
 * node that share no memory), DTR_ERR_MISMATCH (ranks have different versions of the library
 * or settings), DTR_ERR_TIMEOUT (a rank has not come); what put or get of the bootstrap return;
 * DTR_ERR_REMOTE where another rank failed
 *  @since 0.1 */
DTR_API dtr_status dtr_world_create(const dtr_world_options *options, dtr_world **world);

/** Drain all operations, destroy the remaining groups in reverse order (one warning each), stop all
 * threads and free everything. Finalises MPI only if the library initialised it, no world is left
 * and keep_mpi is not set; not after a rank has died or while a thread hangs, because it could wait
 * for ever. NULL is DTR_OK.
 *  @collective all ranks of the world
 *  @blocking up to each group's timeout
 *  @gpu waits for its streams
 *  @errors DTR_ERR_TIMEOUT when work was still unfinished, DTR_ERR_STATE when MPI was finalised
 * before; everything local is freed in either case, except what a thread that hangs may still use
 *  @since 0.1 */
DTR_API dtr_status dtr_world_destroy(dtr_world *world);

/** Write what this rank's flight recorder holds, what it sees of the ranks of its node and why, as
 * JSON beside the recording, named like it but ending in .dump.json, replaced as a whole. The other
 * ranks of the node do the same within two rounds of their watchdogs (DTR_WATCHDOG_MS), also while
 * they compute or hang. The job goes on; the folder is kept at its end. `reason` is written into
 * the dumps.
 *  @collective no
 *  @blocking until this rank's file is written
 *  @gpu no
 *  @errors DTR_ERR_ARG (NULL, no world), DTR_ERR_IO (the file), DTR_ERR_UNSUPPORTED (the
 * recorder has no folder), DTR_ERR_STATE (destroyed)
 *  @since 0.1 */
DTR_API dtr_status dtr_world_dump(dtr_world *world, const char *reason);

/** Give the operations of all groups of the world one turn: start what may start, move what is
 * under way, look at limits, run callbacks of what ends. For programs without a progress thread
 * (DTR_PROGRESS_THREAD=0), or with one that calls no MPI (below MPI_THREAD_MULTIPLE), where
 * operations, or their steps that need MPI, move inside calls of the library only: call it now and
 * then while computing. With a progress thread it is legal and not
 * needed. It waits for nothing, and what fails is told by the works and groups that it failed for.
 *  @collective no; where one thread at a time may call, any that may
 *  @blocking no
 *  @gpu looks at events
 *  @errors DTR_ERR_ARG (NULL, no world), DTR_ERR_STATE (destroyed; below MPI_THREAD_MULTIPLE at
 * DTR_DEBUG=detail while another thread is inside the library)
 *  @since 0.1 */
DTR_API dtr_status dtr_world_progress(dtr_world *world);

/** Rank of this process in the world, -1 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API int dtr_world_rank(const dtr_world *world);

/** Number of ranks in the world, -1 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API int dtr_world_size(const dtr_world *world);

/** Rank of this process among the ranks of its node (shared-memory split, never a launcher
 * variable), -1 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API int dtr_world_local_rank(const dtr_world *world);

/** Number of the world's ranks on this node, -1 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API int dtr_world_local_size(const dtr_world *world);

/** Index of this node, 0.. in order of its lowest world rank, -1 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API int dtr_world_node(const dtr_world *world);

/** Number of nodes the world spans, -1 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API int dtr_world_node_count(const dtr_world *world);

/** This rank's compute device: the one in the options, else the nearest free GPU, else {DTR_CPU, 0}
 * (also for NULL).
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_device dtr_world_device(const dtr_world *world);

/** Number of live groups on this rank, the world's own included; -1 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API int dtr_world_group_count(const dtr_world *world);

/** List the live groups of this rank in creation order. `*n` becomes their number; at most `cap`
 * are written to `list`.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL, negative cap)  @since 0.1 */
DTR_API dtr_status dtr_world_list_groups(const dtr_world *world, dtr_group **list, int cap, int *n);

/** The live group of this rank with that name ("world" is the world's own), NULL when there is
 * none.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_group *dtr_world_find_group(const dtr_world *world, const char *name);

/** The live group created with that tag and exactly that list of world ranks (order counts), NULL
 * when there is none. It only looks, on this rank alone, and adds no reference; dtr_group_create
 * with the tag makes what is not there, on all ranks.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_group *dtr_world_find_tagged(const dtr_world *world, const char *tag,
                                         const int *world_ranks, int n);

DTR_END_DECLS

#endif /* DTR_WORLD_H */
