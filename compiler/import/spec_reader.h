// SPDX-License-Identifier: Apache-2.0
// Reads GraphSpec JSON (version 1) into typed structs, so that the rest of the importer never sees JSON.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/graph/tensor_type.h"
#include "runtime/base/device.h"
#include "runtime/base/status.h"

namespace agspeed::compiler {

/// An argument of a spec node.
struct SpecArg {
  enum class Kind : uint8_t { kNone, kBool, kInteger, kFloat, kString, kDType, kRef, kList };
  Kind kind = Kind::kNone;
  bool boolean = false;
  SymExpr integer;    ///< kInteger
  double number = 0;  ///< kFloat
  std::string text;   ///< kString (devices, layouts and memory formats too), kRef
  DType dtype = DType::kF32;
  std::vector<SpecArg> items;  ///< kList
};

/// The result of a node: a tensor, an integer, a tuple of these, or something that is not tracked.
struct SpecType {
  enum class Kind : uint8_t { kNone, kTensor, kScalar, kTuple };
  Kind kind = Kind::kNone;
  TensorType tensor;
  Device device;
  SymExpr scalar;
  std::vector<SpecType> items;
};

struct SpecNode {
  std::string name;
  std::string op;  ///< "input", "call", "output"
  std::string target;
  std::vector<SpecArg> args;
  std::map<std::string, SpecArg> kwargs;
  SpecType type;
};

struct Spec {
  std::vector<int64_t> hints;  ///< by symbol index
  std::vector<SpecNode> nodes;
};

/// Errors: kInvalidArgument naming the node and the error; kUnsupported for specs that the format allows but the native
/// path cannot represent (unbacked symbols). The importer checks the devices of tensors.
StatusOr<Spec> readSpec(std::string_view json);

}  // namespace agspeed::compiler
