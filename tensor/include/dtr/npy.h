/** @file
 * One tensor in a NumPy file (.npy). */
#ifndef DTR_NPY_H
#define DTR_NPY_H

#include <dtr/tensor.h>

DTR_BEGIN_DECLS

/** Write a tensor, row-major and little-endian, format version 1.0. The file appears under its name
 * complete, or not at all: it is written to a temporary name beside it, flushed and renamed. NumPy
 * has no bf16 and no 8-bit floats: those are refused (convert with dtr_tensor_copy first).
 *  @collective no; of several ranks one should write
 *  @blocking until on disk
 *  @gpu DTR_ERR_UNSUPPORTED for a tensor on a device
 *  @errors DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_IO (with the system's reason; nothing is left
 * behind), DTR_ERR_NOMEM, DTR_ERR_UNSUPPORTED
 *  @since 0.1 */
DTR_API dtr_status dtr_tensor_save_npy(const dtr_tensor *tensor, const char *path);

/** Read a file of format version 1.0, 2.0 or 3.0, little- or big-endian, C or Fortran order, into a
 * new contiguous tensor in plain memory. The header is checked against the size of the file before
 * memory is taken.
 *  @collective no  @blocking until read  @gpu no
 *  @errors DTR_ERR_ARG, DTR_ERR_IO (not there, cut, damaged; the message says where),
 * DTR_ERR_UNSUPPORTED (element types, such as unsigned 16-bit or objects, and numbers of dimensions
 * that tensors here do not have), DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_tensor_load_npy(const char *path, dtr_tensor **tensor);

DTR_END_DECLS

#endif /* DTR_NPY_H */
