#include "world.hpp"

#include "store.hpp"

#include <Python.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>

namespace dtr_torch {

namespace {

std::mutex world_mutex;
dtr_world *the_world = nullptr; // guarded by world_mutex
bool ended = false;             // guarded by world_mutex
std::vector<std::string> not_sites;

std::string text_of(dtr_status status) {
    std::string text = dtr_last_error_message();
    if (text.empty()) {
        text = dtr_status_text(status);
    }
    return text + " (" + dtr_status_name(status) + ")";
}

template <class E> [[noreturn]] void raise(const std::string &text) {
    throw E({ __func__, __FILE__, static_cast<uint32_t>(__LINE__) }, text);
}

// Blocks of dtr_alloc for tensors of at least `from` bytes, what torch had before for smaller ones.
class SharedAllocator : public c10::Allocator {
  public:
    c10::Allocator *before = nullptr;
    size_t from = 0;

    c10::DataPtr allocate(size_t nbytes) override {
        if (nbytes < from || nbytes == 0) {
            return before->allocate(nbytes);
        }
        void *block = nullptr;
        check(dtr_alloc(world(), { DTR_CPU, 0 }, DTR_MEM_SHARED, nbytes, &block));
        check(dtr_retain(world(), block)); // tensors may live longer than the world
        return { block, block, &give_back, c10::Device(c10::DeviceType::CPU) };
    }

    // Two kinds of blocks come from here, so a bare pointer does not say how to free it.
    c10::DeleterFnPtr raw_deleter() const override {
        return nullptr;
    }

    void copy_data(void *to, const void *source, std::size_t count) const override {
        default_copy_data(to, source, count);
    }

  private:
    static void give_back(void *block) {
        dtr_free(nullptr, block);
    }
};

SharedAllocator &shared_allocator() {
    static auto *allocator = new SharedAllocator; // torch may hold it until the process ends
    return *allocator;
}

// A store of torch as the two functions by which ranks find each other, and what went wrong in it.
struct Keys {
    c10::intrusive_ptr<c10d::Store> store;
    std::string failure;

    static dtr_status put(void *keys, const char *key, const void *value, size_t nbytes) {
        auto *self = static_cast<Keys *>(keys);
        try {
            const auto *bytes = static_cast<const uint8_t *>(value);
            self->store->set(key, std::vector<uint8_t>(bytes, bytes + nbytes));
            return DTR_OK;
        } catch (const std::exception &error) {
            self->failure = error.what();
            return DTR_ERR_SYSTEM;
        }
    }

    static dtr_status get(void *keys, const char *key, void *value, size_t cap, size_t *nbytes,
                          double timeout_s) {
        auto *self = static_cast<Keys *>(keys);
        try {
            self->store->wait(
                { key }, std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000) + 1));
            const std::vector<uint8_t> bytes = self->store->get(key);
            *nbytes = bytes.size();
            std::memcpy(value, bytes.data(), std::min(cap, bytes.size()));
            return DTR_OK;
        } catch (const c10::DistStoreError &) {
            return DTR_ERR_TIMEOUT;
        } catch (const std::exception &error) {
            self->failure = error.what();
            return DTR_ERR_SYSTEM;
        }
    }
};

bool is_site(const std::string &file) {
    for (const auto &folder : not_sites) {
        if (file.compare(0, folder.size(), folder) == 0) {
            return false;
        }
    }
    return file.compare(0, 1, "<") != 0;
}

} // namespace

void check(dtr_status status) {
    if (!DTR_FAILED(status)) {
        return;
    }
    const std::string text = text_of(status);
    switch (status) {
    case DTR_ERR_ARG:
    case DTR_ERR_DTYPE:
    case DTR_ERR_DEVICE:
    case DTR_ERR_SHAPE:
    case DTR_ERR_LAYOUT:
    case DTR_ERR_RANK:
    case DTR_ERR_OVERFLOW:
        raise<c10::ValueError>(text);
    case DTR_ERR_TIMEOUT:
    case DTR_ERR_REMOTE:
        raise<c10::DistNetworkError>(text);
    case DTR_ERR_UNSUPPORTED:
        raise<c10::NotImplementedError>(text);
    case DTR_ERR_STATE:
    case DTR_ERR_NOMEM:
    case DTR_ERR_IO:
    case DTR_ERR_SYSTEM:
        raise<c10::Error>(text);
    default:
        raise<c10::DistBackendError>(text);
    }
}

dtr_world *world() {
    std::lock_guard<std::mutex> lock(world_mutex);
    TORCH_CHECK(!ended, "the world of dtr_torch has ended with dtr_torch.shutdown()");
    if (the_world == nullptr) {
        check(dtr_world_create(nullptr, &the_world));
    }
    return the_world;
}

void begin_world(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size) {
    std::lock_guard<std::mutex> lock(world_mutex);
    TORCH_CHECK(!ended, "the world of dtr_torch has ended with dtr_torch.shutdown()");
    if (the_world != nullptr) {
        return;
    }
    Keys keys = { store, "" };
    dtr_bootstrap bootstrap = DTR_BOOTSTRAP_INIT;
    bootstrap.rank = rank;
    bootstrap.size = size;
    bootstrap.arg = &keys;
    bootstrap.put = Keys::put;
    bootstrap.get = Keys::get;
    dtr_world_options options = DTR_WORLD_OPTIONS_INIT;
    options.bootstrap = &bootstrap;
    const dtr_status status = dtr_world_create(&options, &the_world);
    TORCH_CHECK(keys.failure.empty(), dtr_last_error_message(), ": ", keys.failure);
    check(status);
}

bool has_world() {
    std::lock_guard<std::mutex> lock(world_mutex);
    return the_world != nullptr;
}

void end_world() {
    dtr_world *last = nullptr;
    {
        std::lock_guard<std::mutex> lock(world_mutex);
        ended = true;
        std::swap(last, the_world);
    }
    check(dtr_world_destroy(last));
}

std::string broadcast_text(const std::string &text, double timeout_s) {
    dtr_coll_options options = DTR_COLL_OPTIONS_INIT;
    options.timeout_s = timeout_s;
    const dtr_bytes in = dtr_bytes_in(text.data(), text.size());
    dtr_bytes out = { nullptr, 0 };
    note_call_site();
    check(dtr_broadcast_bytes(dtr_world_group(world()), &in, 1, 0, &options, &out));
    std::string copy(static_cast<const char *>(out.data), out.nbytes);
    dtr_bytes_free(&out, 1);
    return copy;
}

bool use_shared_memory(bool on, size_t from) {
    SharedAllocator &shared = shared_allocator();
    c10::Allocator *now = c10::GetCPUAllocator();
    const bool was = now == &shared;
    if (on) {
        world();
        shared.from = from;
        if (!was) {
            shared.before = now;
            c10::SetCPUAllocator(&shared, 0);
        }
    } else if (was) {
        c10::SetCPUAllocator(shared.before, 0);
    }
    return was;
}

void skip_folders(std::vector<std::string> folders) {
    not_sites = std::move(folders);
}

void note_call_site() {
    if (!Py_IsInitialized() || PyGILState_GetThisThreadState() == nullptr) {
        dtr_call_site("torch", 0); // a thread that Python does not know, such as one of autograd
        return;
    }
    const PyGILState_STATE state = PyGILState_Ensure();
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    bool found = false;
    while (frame != nullptr && !found) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        const char *file = PyUnicode_AsUTF8(code->co_filename);
        if (file == nullptr) {
            PyErr_Clear();
        } else if (is_site(file)) {
            found = true;
            dtr_call_site_copy(file, PyFrame_GetLineNumber(frame));
        }
        Py_DECREF(code);
        PyFrameObject *outer = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = outer;
    }
    Py_XDECREF(frame);
    PyGILState_Release(state);
    if (!found) {
        dtr_call_site("torch", 0);
    }
}

} // namespace dtr_torch
