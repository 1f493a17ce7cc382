// Tensors as buffers of the library: what lies densely is used where it is, the rest through a
// dense copy.
#pragma once

#include "world.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace dtr_torch {

// The only tensor of a list, on the CPU and strided.
at::Tensor only(const std::vector<at::Tensor> &tensors, const char *what);

// That a tensor can be handed over, and that tensors of a list are of one type.
void check_tensor(const at::Tensor &tensor, const char *what);
void check_list(const std::vector<at::Tensor> &tensors, size_t size, const char *what);

// The elements of a tensor, or of a list one behind another, without gaps: where they are if they
// lie so, else a copy
// (`fill`) or memory for one.
at::Tensor dense(const at::Tensor &tensor, bool fill);
at::Tensor dense(const std::vector<at::Tensor> &tensors, bool fill);

// Copies dense elements back where they are not the tensor's own.
void spread(const at::Tensor &from, const at::Tensor &to);
void spread(const at::Tensor &from, const std::vector<at::Tensor> &to);

// Buffers for operations that compute, and for those that only move, which take every type.
dtr_buffer numbers(const at::Tensor &tensor);
dtr_buffer moved(const at::Tensor &tensor);

// How many elements moved() has for one of the tensor.
size_t moved_per_element(const at::Tensor &tensor);
std::vector<size_t> counts(const std::vector<at::Tensor> &tensors);

dtr_op operator_of(const c10d::ReduceOp &op, double *premul, const void **premul_at);

} // namespace dtr_torch
