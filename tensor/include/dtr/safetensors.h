/** @file
 * Named tensors in a file: an 8-byte header length, a JSON header, raw little-endian data.
 *
 * Without jansson at build time every call returns DTR_ERR_UNSUPPORTED and says so. */
#ifndef DTR_SAFETENSORS_H
#define DTR_SAFETENSORS_H

#include <dtr/tensor.h>

DTR_BEGIN_DECLS

typedef struct dtr_safetensors dtr_safetensors; /**< an open file */

/** A tensor and its name in the file. */
typedef struct dtr_named_tensor {
    const char *name; /**< UTF-8, unique in the file */
    dtr_tensor *tensor;
} dtr_named_tensor;

/** An entry of the file's metadata. */
typedef struct dtr_text_pair {
    const char *key, *value; /**< UTF-8 */
} dtr_text_pair;

/** Write tensors and text pairs. The file appears under its name complete, or not at all: it is
 * written to a temporary name beside it, flushed and renamed. Strided tensors are written in
 * row-major order. c128 has no name in the format and is refused; so are names and keys that are
 * double, and the name "__metadata__".
 *  @collective no; of several ranks one should write
 *  @blocking until on disk
 *  @gpu DTR_ERR_UNSUPPORTED for tensors on a device
 *  @errors DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_IO (with the system's reason; nothing is left
 * behind), DTR_ERR_NOMEM, DTR_ERR_OVERFLOW, DTR_ERR_UNSUPPORTED
 *  @since 0.1 */
DTR_API dtr_status dtr_safetensors_save(const char *path, const dtr_named_tensor *tensors, size_t n,
                                        const dtr_text_pair *metadata, size_t n_metadata);

/** Open a file and check its header completely: every offset lies in the file, tensors neither
 * overlap nor leave holes, sizes fit shapes. Data is read by the load calls, which any thread may
 * make.
 *  @collective no
 *  @blocking until the header is read
 *  @gpu no
 *  @errors DTR_ERR_ARG, DTR_ERR_IO (not there, cut, damaged, not of this format; the message
 * says where), DTR_ERR_NOMEM, DTR_ERR_UNSUPPORTED
 *  @since 0.1 */
DTR_API dtr_status dtr_safetensors_open(const char *path, dtr_safetensors **file);

/** Close; tensors loaded from the file stay. NULL is DTR_OK.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_status dtr_safetensors_close(dtr_safetensors *file);

/** Number of tensors in the file, 0 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API size_t dtr_safetensors_count(const dtr_safetensors *file);

/** Name of tensor i in the order of the data, NULL outside; valid until the file is closed.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API const char *dtr_safetensors_name(const dtr_safetensors *file, size_t i);

/** Type and shape of a tensor; each output may be NULL. `shape` has room for DTR_MAX_NDIM sizes.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL; no such name), DTR_ERR_UNSUPPORTED (an element type or number of
 * dimensions that tensors here do not have)
 *  @since 0.1 */
DTR_API dtr_status dtr_safetensors_describe(const dtr_safetensors *file, const char *name,
                                            dtr_dtype *dtype, int *ndim, int64_t *shape);

/** Read one tensor into new memory.
 *  @collective no; any thread  @blocking until read  @gpu no
 *  @errors DTR_ERR_ARG (NULL; no such name), DTR_ERR_UNSUPPORTED (as describe), DTR_ERR_IO,
 * DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_safetensors_load(const dtr_safetensors *file, const char *name,
                                        dtr_tensor **tensor);

/** Read one tensor into an existing one of the same shape, any strides, converting as
 * dtr_tensor_copy does.
 *  @collective no; any thread  @blocking until read
 *  @gpu DTR_ERR_UNSUPPORTED for a tensor on a device
 *  @errors as dtr_safetensors_load; DTR_ERR_SHAPE, DTR_ERR_LAYOUT  @since 0.1 */
DTR_API dtr_status dtr_safetensors_load_into(const dtr_safetensors *file, const char *name,
                                             dtr_tensor *tensor);

/** Value of a metadata key, NULL when there is none; valid until the file is closed.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API const char *dtr_safetensors_metadata(const dtr_safetensors *file, const char *key);

/** Key i of the metadata, NULL outside; valid until the file is closed.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API const char *dtr_safetensors_metadata_key(const dtr_safetensors *file, size_t i);

DTR_END_DECLS

#endif /* DTR_SAFETENSORS_H */
