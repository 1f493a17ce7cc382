// The backend: each operation of c10d as one of the library, on CPU tensors.
#pragma once

#include "work.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <mutex>

namespace dtr_torch {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct __attribute__((visibility("hidden"))) GroupOptions : c10d::Backend::Options {
    explicit GroupOptions(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("dtr", timeout) {
    }

    c10::intrusive_ptr<c10d::Backend::Options> clone() const override {
        return c10::make_intrusive<GroupOptions>(*this);
    }

    std::string transport;      // dtr_group_options.backend, "cpu:mpi"; empty: the library chooses
    bool deterministic = false; // as the fields of these names there
    bool reproducible = false;
};

// How a call is made: what torch calls it, its limit, and whether it returns at once.
struct Call {
    c10d::OpType type;
    const char *title;
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
    bool async = true;
    double premul = 0;
    const void *premul_at = nullptr;
};

class __attribute__((visibility("hidden"))) ProcessGroupDtr : public c10d::Backend {
  public:
    // A collective of the listed ranks of the world, of which this process is entry `rank`.
    ProcessGroupDtr(int rank, std::vector<int> world_ranks,
                    c10::intrusive_ptr<GroupOptions> options);
    ~ProcessGroupDtr() override;

    const std::string getBackendName() const override {
        return "dtr";
    }
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
        return options_;
    }
    bool supportsSplitting() const override {
        return true;
    }
    c10::intrusive_ptr<c10d::Backend> split(
        const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
        const c10::intrusive_ptr<c10d::Backend::Options> &options) override;
    void setTimeout(std::chrono::milliseconds timeout) override;
    uint64_t getSequenceNumberForGroup() override;
    void setSequenceNumberForGroup() override {
    }
    c10d::ErrorType getError() override;
    void abort() override;
    void shutdown() override;

    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override;
    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override;
    WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options) override;
    WorkPtr allreduce_coalesced(Tensors &tensors,
                                const c10d::AllreduceCoalescedOptions &options) override;
    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &options) override;
    WorkPtr allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &options) override;
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input,
                            const c10d::AllgatherOptions &options) override;
    WorkPtr allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                const c10d::AllgatherOptions &options) override;
    WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &options) override;
    WorkPtr gather(std::vector<Tensors> &outputs, Tensors &inputs,
                   const c10d::GatherOptions &options) override;
    WorkPtr scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                    const c10d::ScatterOptions &options) override;
    WorkPtr reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                           const c10d::ReduceScatterOptions &options) override;
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &options) override;
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &options) override;
    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input,
                          std::vector<int64_t> &output_splits, std::vector<int64_t> &input_splits,
                          const c10d::AllToAllOptions &options) override;
    WorkPtr alltoall(Tensors &outputs, Tensors &inputs,
                     const c10d::AllToAllOptions &options) override;
    WorkPtr send(Tensors &tensors, int peer, int tag) override;
    WorkPtr recv(Tensors &tensors, int peer, int tag) override;
    WorkPtr recvAnysource(Tensors &tensors, int tag) override;
    WorkPtr barrier(const c10d::BarrierOptions &options) override;
    void monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all) override;

  private:
    class Plan;

    dtr_group *live() const;
    WorkPtr receive(Tensors &tensors, c10d::OpType type, int peer, int tag);

    const std::vector<int> world_ranks_; // of the group's ranks
    const c10::intrusive_ptr<GroupOptions> options_;
    std::mutex scope_mutex_; // one coalescing scope of the group at a time
    mutable std::mutex mutex_;
    dtr_group *group_ = nullptr; // guarded by mutex_; NULL after shutdown
};

} // namespace dtr_torch
