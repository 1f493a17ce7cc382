// How an operation of torch becomes one of the library.
#pragma once

#include "process_group.hpp"
#include "tensors.hpp"

#include <functional>

namespace dtr_torch {

// A limit of torch as one of the library, where 0 means the group's.
inline double seconds(std::chrono::milliseconds timeout) {
    return timeout.count() > 0 ? std::chrono::duration<double>(timeout).count() : 0;
}

// One call: its work, its options, and the steps from there to a result.
class ProcessGroupDtr::Plan {
  public:
    Plan(const ProcessGroupDtr &group, const Call &call, const Tensors &inputs,
         const Tensors &outputs)
        : group(group.live()), call_(call),
          work_(c10::make_intrusive<DtrWork>(group.rank_, call.type, call.title, inputs)) {
        options.timeout_s = seconds(call.timeout);
        options.premul = call.premul;
        options.premul_device = call.premul_at;
        work_->operation->outputs = outputs;
        hold(inputs);
        hold(outputs);
    }

    // Memory that has to stay until the end.
    void hold(const Tensors &tensors) {
        Tensors &held = work_->operation->held;
        held.insert(held.end(), tensors.begin(), tensors.end());
    }

    // What is copied from where the operation has written to where the caller wants it.
    template <class To> void copy_back(const at::Tensor &from, const To &to) {
        hold({ from });
        copies_.push_back([from, to] { spread(from, to); });
    }

    dtr_work **handle() {
        return call_.async ? &work_->operation->handle : nullptr;
    }

    template <class Start> WorkPtr start(Start &&begin) {
        Operation &operation = *work_->operation;
        operation.after = [copies = std::move(copies_)] {
            for (const auto &copy : copies) {
                copy();
            }
        };
        note_call_site();
        check(begin());
        if (operation.handle == nullptr) {
            operation.settle(DTR_OK);
        }
        return work_;
    }

    // Starts `n` calls as one operation. `one` makes call i, without a work of its own.
    template <class One> WorkPtr start_together(std::mutex &scope, size_t n, One &&one) {
        return start([&] {
            std::lock_guard<std::mutex> lock(scope);
            dtr_status status = dtr_coalesce_begin(group);
            if (DTR_FAILED(status)) {
                return status;
            }
            for (size_t i = 0; i < n && !DTR_FAILED(status); i++) {
                note_call_site();
                status = one(i);
            }
            note_call_site();
            return dtr_coalesce_end(group, handle());
        });
    }

    dtr_group *const group;
    dtr_coll_options options = DTR_COLL_OPTIONS_INIT;

  private:
    const Call call_;
    const c10::intrusive_ptr<DtrWork> work_;
    std::vector<std::function<void()>> copies_;
};

} // namespace dtr_torch
