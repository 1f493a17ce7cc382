// Works: what torch holds of an operation that has been started.
#pragma once

#include "world.hpp"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <memory>

namespace dtr_torch {

// An operation from its call to its end. Whoever sees the end first (a wait, a test, the completion
// thread) settles it.
struct Operation : std::enable_shared_from_this<Operation> {
    dtr_work *handle = nullptr;        // NULL: complete when the call returned
    std::vector<at::Tensor> outputs;   // what the future gives
    std::vector<at::Tensor> held;      // guarded by mutex: memory that the operation uses
    std::function<void()> after;       // guarded by mutex: copies out of staging
    std::function<void()> profile_end; // guarded by mutex

    std::mutex mutex;
    bool done = false;        // guarded by mutex
    bool watched = false;     // guarded by mutex: the completion thread will settle it
    int source = -1;          // guarded by mutex
    std::exception_ptr error; // guarded by mutex
    c10::intrusive_ptr<c10::ivalue::Future> future; // guarded by mutex

    ~Operation();
    void settle(dtr_status status);
    void watch();
    bool finished();
};

class DtrWork : public c10d::Work {
  public:
    DtrWork(int rank, c10d::OpType type, const char *title, const std::vector<at::Tensor> &inputs);
    ~DtrWork() override;

    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    int sourceRank() const override;
    std::vector<at::Tensor> result() override;
    void synchronize() override;
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    float getDuration() const override;
    uint64_t getSequencenumber() const override;

    const std::shared_ptr<Operation> operation = std::make_shared<Operation>();
};

// Settles what is left and ends the completion thread.
void stop_completions();

} // namespace dtr_torch
