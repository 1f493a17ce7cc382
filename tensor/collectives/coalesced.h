/* Many tensors broadcast as few messages, for DDP. */
#ifndef DTR_TENSOR_COALESCED_H
#define DTR_TENSOR_COALESCED_H

#include <dtr/tensor.h>

/* dtr_broadcast_coalesced with options and the tag word of its fingerprints, for DDP. */
dtr_status dtr__broadcast_coalesced(dtr_group *group, dtr_tensor *const *tensors, size_t n,
                                    int root, size_t piece_nbytes, const dtr_coll_options *options,
                                    uint64_t tag_word);

#endif /* DTR_TENSOR_COALESCED_H */
