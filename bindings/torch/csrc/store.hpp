// A world without mpirun, whose processes find each other in a store of torch.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace dtr_torch {

// Makes the world of this process; MPI is left alone. Not if there is a world already. A collective
// of all ranks.
void begin_world(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size);

} // namespace dtr_torch
