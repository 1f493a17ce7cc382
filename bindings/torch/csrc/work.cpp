#include "work.hpp"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>

#include <condition_variable>
#include <deque>
#include <thread>

namespace dtr_torch {

namespace {

// Futures run callbacks of the program, which may wait for other operations. The library's own
// threads must not, so one thread of this package settles the operations whose futures somebody has
// asked for.
class Completions {
  public:
    void push(std::shared_ptr<Operation> operation) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!thread_.joinable()) {
            thread_ = std::thread([this] { run(); });
        }
        queue_.push_back(std::move(operation));
        changed_.notify_one();
    }

    void stop() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
            changed_.notify_one();
        }
        if (thread_.joinable()) {
            thread_.join();
        }
        stopping_ = false;
        thread_ = std::thread();
    }

  private:
    void run() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (true) {
            changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
            if (queue_.empty()) {
                return;
            }
            std::shared_ptr<Operation> operation = std::move(queue_.front());
            queue_.pop_front();
            lock.unlock();
            operation->settle(
                dtr_work_wait(operation->handle, 0)); // leaves the error's text in this thread
            operation.reset();
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Operation>> queue_; // guarded by mutex_
    bool stopping_ = false;                        // guarded by mutex_
    std::thread thread_;                           // guarded by mutex_
};

Completions &completions() {
    static auto *all = new Completions; // its thread may outlive static destructors
    return *all;
}

void on_complete(dtr_work * /*work*/, dtr_status /*status*/, void *arg) {
    auto *operation = static_cast<std::shared_ptr<Operation> *>(arg);
    completions().push(std::move(*operation));
    delete operation;
}

void complete(const c10::intrusive_ptr<c10::ivalue::Future> &future, const Operation &operation) {
    if (operation.error) {
        future->setError(operation.error);
    } else {
        future->markCompleted(c10::IValue(operation.outputs));
    }
}

} // namespace

void stop_completions() {
    completions().stop();
}

Operation::~Operation() {
    if (handle != nullptr && has_world()) {
        dtr_work_release(handle);
    }
}

bool Operation::finished() {
    std::lock_guard<std::mutex> lock(mutex);
    return done;
}

void Operation::settle(dtr_status status) {
    c10::intrusive_ptr<c10::ivalue::Future> waiting;
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (done) {
            return;
        }
        try {
            check(status);
            source = dtr_work_source(handle);
            if (after) {
                at::AutoDispatchBelowADInplaceOrView
                    below; // inputs may be leaves, or of inference mode
                after();
            }
        } catch (...) {
            error = std::current_exception();
        }
        done = true;
        after = nullptr;
        held.clear();
        if (profile_end) {
            profile_end();
            profile_end = nullptr;
        }
        waiting = future;
    }
    if (waiting) {
        complete(waiting, *this);
    }
}

void Operation::watch() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (done || watched) {
            return;
        }
        watched = true;
    }
    auto *self = new std::shared_ptr<Operation>(shared_from_this());
    const dtr_status status = dtr_work_on_complete(handle, on_complete, self);
    if (DTR_FAILED(status)) {
        delete self;
        settle(status);
    }
}

DtrWork::DtrWork(int rank, c10d::OpType type, const char *title,
                 const std::vector<at::Tensor> &inputs)
    : Work(rank, type, title, inputs) {
    operation->profile_end = std::move(recordFunctionEndCallback_);
    recordFunctionEndCallback_ = nullptr;
}

DtrWork::~DtrWork() {
    if (operation->handle != nullptr && has_world()) {
        operation->watch(); // its memory must stay until it has ended
    }
}

bool DtrWork::isCompleted() {
    if (operation->finished()) {
        return true;
    }
    const dtr_status status = dtr_work_wait(operation->handle, 0);
    if (status == DTR_IN_PROGRESS) {
        return false;
    }
    operation->settle(status);
    return true;
}

bool DtrWork::isSuccess() const {
    std::lock_guard<std::mutex> lock(operation->mutex);
    return operation->done && !operation->error;
}

std::exception_ptr DtrWork::exception() const {
    std::lock_guard<std::mutex> lock(operation->mutex);
    return operation->error;
}

int DtrWork::sourceRank() const {
    std::lock_guard<std::mutex> lock(operation->mutex);
    return operation->source;
}

std::vector<at::Tensor> DtrWork::result() {
    TORCH_CHECK(isCompleted(),
                "the result of an operation was asked for before its end; wait() first");
    return operation->outputs;
}

void DtrWork::synchronize() {
    wait();
}

bool DtrWork::wait(std::chrono::milliseconds timeout) {
    if (!operation->finished()) {
        const double limit =
            timeout == kNoTimeout ? -1 : std::chrono::duration<double>(timeout).count();
        operation->settle(dtr_work_wait(operation->handle, limit));
    }
    if (auto error = exception()) {
        std::rethrow_exception(error);
    }
    return true;
}

c10::intrusive_ptr<c10::ivalue::Future> DtrWork::getFuture() {
    bool done;
    {
        std::lock_guard<std::mutex> lock(operation->mutex);
        if (operation->future) {
            return operation->future;
        }
        operation->future =
            c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
        done = operation->done;
    }
    if (done) {
        complete(operation->future, *operation);
    } else {
        operation->watch();
    }
    return operation->future;
}

float DtrWork::getDuration() const {
    return static_cast<float>(1e3 * dtr_work_duration(operation->handle));
}

uint64_t DtrWork::getSequencenumber() const {
    return dtr_work_seq(operation->handle);
}

} // namespace dtr_torch
