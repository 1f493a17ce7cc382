// What Python sees of this package's C++ side; dtr_torch/__init__.py is its only user.
#include "process_group.hpp"
#include "store.hpp"

#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

namespace py = pybind11;

namespace dtr_torch {

namespace {

py::tuple world_facts() {
    dtr_world *w = nullptr;
    {
        py::gil_scoped_release nogil;
        w = world();
    }
    return py::make_tuple(dtr_world_rank(w), dtr_world_size(w), dtr_world_local_rank(w),
                          dtr_world_node_count(w));
}

void shutdown() {
    py::gil_scoped_release nogil;
    use_shared_memory(false, 0);
    if (has_world()) {
        end_world();
    }
    stop_completions();
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    py::class_<GroupOptions, c10d::Backend::Options, c10::intrusive_ptr<GroupOptions>>(
        m, "Options",
        "Options of a process group: the limit of its operations, and how the library makes the "
        "group.")
        .def(py::init([](std::chrono::milliseconds timeout, std::string transport,
                         bool deterministic, bool reproducible) {
                 auto options = c10::make_intrusive<GroupOptions>(timeout);
                 options->transport = std::move(transport);
                 options->deterministic = deterministic;
                 options->reproducible = reproducible;
                 return options;
             }),
             py::arg("timeout") = kBackendDefaultTimeout, py::arg("transport") = "",
             py::arg("deterministic") = false, py::arg("reproducible") = false)
        .def_readwrite("transport", &GroupOptions::transport)
        .def_readwrite("deterministic", &GroupOptions::deterministic)
        .def_readwrite("reproducible", &GroupOptions::reproducible);
    m.def(
        "create",
        [](int rank, std::vector<int> world_ranks,
           const c10::intrusive_ptr<GroupOptions> &options) -> c10::intrusive_ptr<c10d::Backend> {
            return c10::make_intrusive<ProcessGroupDtr>(rank, std::move(world_ranks), options);
        },
        py::arg("rank"), py::arg("world_ranks"), py::arg("options"),
        py::call_guard<py::gil_scoped_release>());
    m.def("version", &dtr_version_string, "Versions of the library and of what it runs on.");
    m.def("world", &world_facts, "Rank, size, rank on the node and number of nodes of the world.");
    m.def("begin_world", &begin_world, py::arg("store"), py::arg("rank"), py::arg("size"),
          py::call_guard<py::gil_scoped_release>());
    m.def("has_world", &has_world);
    m.def("broadcast_text", &broadcast_text, py::arg("text"), py::arg("timeout_s"),
          py::call_guard<py::gil_scoped_release>());
    m.def("use_shared_memory", &use_shared_memory, py::arg("on"), py::arg("at_least"),
          py::call_guard<py::gil_scoped_release>());
    m.def("skip_folders", &skip_folders);
    m.def("shutdown", &shutdown);
}

} // namespace dtr_torch
