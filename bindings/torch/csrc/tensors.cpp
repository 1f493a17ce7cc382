#include "tensors.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

#include <optional>

namespace dtr_torch {

namespace {

std::optional<dtr_dtype> type_of(at::ScalarType type) {
    switch (type) {
    case at::kBool:
        return DTR_BOOL;
    case at::kByte:
        return DTR_U8;
    case at::kChar:
        return DTR_I8;
    case at::kShort:
        return DTR_I16;
    case at::kInt:
        return DTR_I32;
    case at::kLong:
        return DTR_I64;
    case at::kUInt16:
        return DTR_U16;
    case at::kUInt32:
        return DTR_U32;
    case at::kUInt64:
        return DTR_U64;
    case at::kHalf:
        return DTR_F16;
    case at::kBFloat16:
        return DTR_BF16;
    case at::kFloat:
        return DTR_F32;
    case at::kDouble:
        return DTR_F64;
    case at::kComplexFloat:
        return DTR_C64;
    case at::kComplexDouble:
        return DTR_C128;
    case at::kFloat8_e4m3fn:
        return DTR_F8E4M3;
    case at::kFloat8_e5m2:
        return DTR_F8E5M2;
    default:
        return std::nullopt;
    }
}

bool is_dense(const at::Tensor &tensor) {
    return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Whether the tensors lie in one storage, one behind another, as chunks of one tensor do.
bool adjacent(const std::vector<at::Tensor> &tensors) {
    const at::Tensor &first = tensors.front();
    int64_t offset = first.storage_offset();
    for (const auto &tensor : tensors) {
        if (!is_dense(tensor) || !tensor.is_alias_of(first) || tensor.storage_offset() != offset) {
            return false;
        }
        offset += tensor.numel();
    }
    return true;
}

int64_t total(const std::vector<at::Tensor> &tensors) {
    int64_t sum = 0;
    for (const auto &tensor : tensors) {
        sum += tensor.numel();
    }
    return sum;
}

} // namespace

void check_tensor(const at::Tensor &tensor, const char *what) {
    TORCH_CHECK_VALUE(tensor.defined(), what, ": a tensor is None");
    TORCH_CHECK_VALUE(tensor.device().is_cpu(), what, ": a tensor is on ", tensor.device(),
                      "; the backend dtr takes CPU tensors, for others use a second backend as in "
                      "\"cpu:dtr,cuda:nccl\"");
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, what, ": a tensor has the layout ",
                      tensor.layout(), "; dense ones are taken, and sparse ones by all_reduce");
}

at::Tensor only(const std::vector<at::Tensor> &tensors, const char *what) {
    TORCH_CHECK_VALUE(tensors.size() == 1, what, ": ", tensors.size(), " tensors, one is needed");
    check_tensor(tensors[0], what);
    return tensors[0];
}

void check_list(const std::vector<at::Tensor> &tensors, size_t size, const char *what) {
    TORCH_CHECK_VALUE(tensors.size() == size, what, ": the list has ", tensors.size(), " tensors, ",
                      size, " are needed");
    for (const auto &tensor : tensors) {
        check_tensor(tensor, what);
        TORCH_CHECK_VALUE(tensor.scalar_type() == tensors[0].scalar_type(), what,
                          ": the list has tensors of type ", tensors[0].scalar_type(), " and ",
                          tensor.scalar_type(), ", one type is needed");
    }
}

at::Tensor dense(const at::Tensor &tensor, bool fill) {
    if (is_dense(tensor)) {
        return tensor;
    }
    at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor copy = at::empty(tensor.sizes(), tensor.options());
    return fill ? copy.copy_(tensor) : copy;
}

at::Tensor dense(const std::vector<at::Tensor> &tensors, bool fill) {
    at::AutoDispatchBelowADInplaceOrView below;
    if (adjacent(tensors)) {
        return tensors[0].as_strided({ total(tensors) }, { 1 }, tensors[0].storage_offset());
    }
    at::Tensor copy = at::empty({ total(tensors) }, tensors[0].options());
    int64_t at = 0;
    for (const auto &tensor : tensors) {
        if (fill) {
            copy.narrow(0, at, tensor.numel()).view(tensor.sizes()).copy_(tensor);
        }
        at += tensor.numel();
    }
    return copy;
}

void spread(const at::Tensor &from, const at::Tensor &to) {
    if (!from.is_alias_of(to)) {
        to.copy_(from);
    }
}

void spread(const at::Tensor &from, const std::vector<at::Tensor> &to) {
    if (to.empty() || from.is_alias_of(to[0])) {
        return;
    }
    int64_t at = 0;
    for (const auto &tensor : to) {
        tensor.copy_(from.narrow(0, at, tensor.numel()).view(tensor.sizes()));
        at += tensor.numel();
    }
}

dtr_buffer numbers(const at::Tensor &tensor) {
    const auto type = type_of(tensor.scalar_type());
    TORCH_CHECK_VALUE(type.has_value(), "dtr does not compute with elements of type ",
                      tensor.scalar_type());
    return dtr_cpu(tensor.data_ptr(), static_cast<size_t>(tensor.numel()), *type);
}

size_t moved_per_element(const at::Tensor &tensor) {
    return type_of(tensor.scalar_type()) ? 1 : tensor.element_size();
}

dtr_buffer moved(const at::Tensor &tensor) {
    return dtr_cpu(tensor.data_ptr(),
                   moved_per_element(tensor) * static_cast<size_t>(tensor.numel()),
                   type_of(tensor.scalar_type()).value_or(DTR_U8));
}

std::vector<size_t> counts(const std::vector<at::Tensor> &tensors) {
    std::vector<size_t> all;
    for (const auto &tensor : tensors) {
        all.push_back(moved_per_element(tensor) * static_cast<size_t>(tensor.numel()));
    }
    return all;
}

dtr_op operator_of(const c10d::ReduceOp &op, double *premul, const void **premul_at) {
    static const double zero[2] = { 0,
                                    0 }; // zero of every type: as a value it would mean "not given"
    switch (op.op_) {
    case c10d::ReduceOp::SUM:
        return DTR_SUM;
    case c10d::ReduceOp::AVG:
        return DTR_AVG;
    case c10d::ReduceOp::PRODUCT:
        return DTR_PROD;
    case c10d::ReduceOp::MIN:
        return DTR_MIN;
    case c10d::ReduceOp::MAX:
        return DTR_MAX;
    case c10d::ReduceOp::BAND:
        return DTR_BAND;
    case c10d::ReduceOp::BOR:
        return DTR_BOR;
    case c10d::ReduceOp::BXOR:
        return DTR_BXOR;
    case c10d::ReduceOp::PREMUL_SUM: {
        const auto *with = dynamic_cast<c10d::PreMulSumSupplement *>(op.supplement_.get());
        TORCH_CHECK_VALUE(with != nullptr, "PREMUL_SUM has no factor");
        *premul = with->tensor_factor.defined() ? with->tensor_factor.item<double>()
                                                : with->double_factor;
        *premul_at = *premul == 0 ? zero : nullptr;
        return DTR_PREMUL_SUM;
    }
    default:
        TORCH_CHECK_VALUE(false, "dtr has no operator for reduce op ", static_cast<int>(op.op_));
    }
}

} // namespace dtr_torch
