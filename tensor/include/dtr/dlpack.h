/** @file
 * Exchange of tensors with other libraries in one process through DLPack, without copying. The
 * structs are DLPack's own; include <dlpack/dlpack.h> to look into them.
 *
 * Without dlpack.h at build time these calls return DTR_ERR_UNSUPPORTED and say so; the versioned
 * ones also where the header was older than 1.0. */
#ifndef DTR_DLPACK_H
#define DTR_DLPACK_H

#include <dtr/tensor.h>

DTR_BEGIN_DECLS

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/** Hand a tensor to another library. The result holds a reference on it until its consumer calls
 * the result's deleter, once, on any thread. Element types that the DLPack of the build lacks (bool
 * before 0.8, 8-bit floats before 1.1) are refused.
 *  @collective no  @blocking no
 *  @gpu a device pointer is handed over as it is; the caller orders streams
 *  @errors DTR_ERR_ARG (NULL), DTR_ERR_DTYPE, DTR_ERR_NOMEM, DTR_ERR_UNSUPPORTED  @since 0.1 */
DTR_API dtr_status dtr_tensor_to_dlpack(dtr_tensor *tensor, struct DLManagedTensor **managed);

/** Make a tensor over another library's memory. On success the tensor owns `managed` and calls its
 * deleter once, when the last tensor over the memory is released; on failure the caller still owns
 * it. Any strides, NULL strides, byte offsets and empty shapes are taken; addresses must be aligned
 * for their elements.
 *  @collective no  @blocking no
 *  @gpu a device pointer is taken as it is; the caller orders streams
 *  @errors DTR_ERR_ARG (NULL; a shape that is none), DTR_ERR_DTYPE (element types that tensors
 * here do not have), DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_LAYOUT (alignment), DTR_ERR_OVERFLOW,
 * DTR_ERR_NOMEM, DTR_ERR_UNSUPPORTED
 *  @since 0.1 */
DTR_API dtr_status dtr_tensor_from_dlpack(struct DLManagedTensor *managed, dtr_tensor **tensor);

/** As dtr_tensor_to_dlpack with the struct that carries a version and flags.
 *  @collective no  @blocking no
 *  @gpu as dtr_tensor_to_dlpack
 *  @errors as dtr_tensor_to_dlpack  @since 0.1 */
DTR_API dtr_status dtr_tensor_to_dlpack_versioned(dtr_tensor *tensor,
                                                  struct DLManagedTensorVersioned **managed);

/** As dtr_tensor_from_dlpack with the struct that carries a version and flags. Another
 * major version and read-only memory are refused.
 *  @collective no  @blocking no
 *  @gpu as dtr_tensor_from_dlpack
 *  @errors as dtr_tensor_from_dlpack  @since 0.1 */
DTR_API dtr_status dtr_tensor_from_dlpack_versioned(struct DLManagedTensorVersioned *managed,
                                                    dtr_tensor **tensor);

DTR_END_DECLS

#endif /* DTR_DLPACK_H */
