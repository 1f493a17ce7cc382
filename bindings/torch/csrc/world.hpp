// The one world of this process, errors of the library as exceptions of torch, and node-shared
// memory for tensors.
#pragma once

#define DTR_NO_CALL_SITE // call sites are lines of Python, noted by note_call_site
#include <dtr/dtr.h>

#include <string>
#include <vector>

namespace dtr_torch {

// Throws what fits `status` with the text of this thread's last error.
void check(dtr_status status);

// The world over MPI_COMM_WORLD, made by the first call. A collective of all ranks.
dtr_world *world();

// Whether there is a world, which there is no more once end_world has been called.
bool has_world();

// Lets go of the world, and ends MPI where the library began it. A collective of all ranks.
void end_world();

// What rank 0 gives, on all ranks.
std::string broadcast_text(const std::string &text, double timeout_s);

// From now on, until it is called with false, CPU tensors of `from` bytes or more lie in memory
// that the ranks of a node share. True where that was so before.
bool use_shared_memory(bool on, size_t from);

// Notes the innermost line of Python outside of torch and this package for this thread's next
// operation.
void note_call_site();

// Folders whose lines are no call sites.
void skip_folders(std::vector<std::string> folders);

} // namespace dtr_torch
