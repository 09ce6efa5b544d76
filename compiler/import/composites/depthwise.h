// SPDX-License-Identifier: Apache-2.0
// Builders of depthwise convolutions and their gradients, for the builders of all convolutions (convolution.cpp).
#pragma once

#include "compiler/import/op_import.h"

namespace agspeed::compiler {

/// Make the launches of window operators. Requires: the tensors among the arguments are tensors of the graph. Errors:
/// kUnsupported with the reason, if the convolution has to stay a call.
Status buildDepthwise(OpImport& op);
Status buildDepthwiseBackward(OpImport& op);

}  // namespace agspeed::compiler
