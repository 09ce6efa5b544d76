// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <optional>
#include <span>

#include "comm/compress/int8.h"
#include "comm/compress/lossless.h"
#include "comm/compress/top_k.h"
#include "python/csrc/bindings.h"
#include "runtime/aten/tensors.h"

namespace agspeed::python {
namespace {

namespace compress = comm::compress;

/// Throws ValueError unless the tensor is dense, contiguous and in host memory.
void checkIsInPlace(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && tensor.is_contiguous() && tensor.is_cpu(),
                    "a codec needs a dense, contiguous tensor in host memory; make the tensor contiguous.");
}

void check(const at::Tensor& tensor, at::ScalarType type) {
  checkIsInPlace(tensor);
  TORCH_CHECK_VALUE(tensor.scalar_type() == type, "a codec needs a tensor of ", type, ", and got ",
                    tensor.scalar_type(), ".");
}

void checkInt8(const at::Tensor& code, const at::Tensor& values) {
  check(code, at::kByte);
  check(values, at::kFloat);
  const size_t expected = compress::int8Bytes(static_cast<size_t>(values.numel()));
  TORCH_CHECK_VALUE(static_cast<size_t>(code.numel()) == expected, "the code of ", values.numel(), " values has ",
                    expected, " bytes, not ", code.numel(), ".");
}

bool int8Encode(const at::Tensor& code, const at::Tensor& values) {
  checkInt8(code, values);
  return compress::encodeInt8(code.mutable_data_ptr<uint8_t>(), values.const_data_ptr<float>(),
                              static_cast<size_t>(values.numel()));
}

void int8Decode(const at::Tensor& values, const at::Tensor& code, double factor, bool adds) {
  checkInt8(code, values);
  const auto decode = adds ? &compress::addInt8 : &compress::decodeInt8;
  decode(values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel()), code.const_data_ptr<uint8_t>(),
         static_cast<float>(factor));
}

bool selectLargest(const at::Tensor& indices, const at::Tensor& values) {
  check(indices, at::kInt);
  check(values, at::kFloat);
  TORCH_CHECK_VALUE(
      0 < indices.numel() && indices.numel() <= values.numel() && values.numel() <= std::numeric_limits<int32_t>::max(),
      "cannot select ", indices.numel(), " of ", values.numel(), " values.");
  return compress::selectLargest(std::span(indices.mutable_data_ptr<int32_t>(), static_cast<size_t>(indices.numel())),
                                 std::span(values.const_data_ptr<float>(), static_cast<size_t>(values.numel())));
}

/// Returns the type of a tensor that has a lossless code; throws ValueError for any other tensor.
DType losslessType(const at::Tensor& values) {
  checkIsInPlace(values);
  const std::optional<DType> dtype = runtime::aten::dtypeOf(values.scalar_type());
  TORCH_CHECK_VALUE(dtype.has_value() && compress::hasLosslessCode(*dtype), "there is no lossless code of ",
                    values.scalar_type(), ": use float32, float16 or bfloat16.");
  return *dtype;
}

size_t losslessBytes(const at::Tensor& values) {
  return compress::maxLosslessBytes(static_cast<size_t>(values.numel()), losslessType(values));
}

size_t losslessEncode(const at::Tensor& code, const at::Tensor& values) {
  const DType dtype = losslessType(values);
  check(code, at::kByte);
  const auto room = static_cast<size_t>(code.numel());
  const size_t size = compress::encodeLossless({static_cast<std::byte*>(code.mutable_data_ptr()), room},
                                               static_cast<const std::byte*>(values.const_data_ptr()),
                                               static_cast<size_t>(values.numel()), dtype);
  TORCH_CHECK_VALUE(size > 0 || values.numel() == 0, "the lossless code of ", values.numel(),
                    " values does not fit into ", room,
                    " bytes; lossless_bytes() returns a number of bytes that is always enough.");
  return size;
}

void losslessDecode(const at::Tensor& values, const at::Tensor& code) {
  const DType dtype = losslessType(values);
  check(code, at::kByte);
  const Status status = compress::decodeLossless(
      static_cast<std::byte*>(values.mutable_data_ptr()), static_cast<size_t>(values.numel()), dtype,
      {static_cast<const std::byte*>(code.const_data_ptr()), static_cast<size_t>(code.numel())});
  TORCH_CHECK_VALUE(status.isOk(), status.message());
}

}  // namespace

void bindCodecs(pybind11::module_& module) {
  namespace py = pybind11;
  const auto released = py::call_guard<py::gil_scoped_release>();
  module.def("int8_bytes", &compress::int8Bytes, py::arg("num_elements"));
  module.def("int8_decode", &int8Decode, py::arg("values"), py::arg("code"), py::arg("factor"), py::arg("adds"),
             released);
  module.def("int8_encode", &int8Encode, py::arg("code"), py::arg("values"), released);
  module.def("lossless_bytes", &losslessBytes, py::arg("values"));
  module.def("lossless_decode", &losslessDecode, py::arg("values"), py::arg("code"), released);
  module.def("lossless_encode", &losslessEncode, py::arg("code"), py::arg("values"), released);
  module.def("select_largest", &selectLargest, py::arg("indices"), py::arg("values"), released);
}

}  // namespace agspeed::python
