// SPDX-License-Identifier: Apache-2.0
// Pointwise operations on register values (see emit_types.h), with ATen's semantics. One row of a table per operation.
//
// If ATen raises an error (integer division by zero), the generated code gives 0 and does not trap. An importer that
// has to keep the error leaves such operations to ATen.
#pragma once

#include "compiler/graph/cluster.h"
#include "passes/kernel/value_builder.h"

namespace agspeed::compiler {

/// The dtype in which a node computes: the inputs' dtype for comparisons and predicates, else its own.
DType operationDType(const Cluster& cluster, const ClusterNode& node);

/// Errors: kUnsupported naming the operation and the dtype if there is no code for the pair.
Status checkPointwise(const Cluster& cluster, const ClusterNode& node);

/// Requires: checkPointwise(node); inputs are of operationDType(), except the condition of kWhere (bool).
passes::Val emitPointwise(const ClusterNode& node, DType operationDType, mlir::ArrayRef<passes::Val> inputs);

/// A node's value from its inputs' values. Requires: checkPointwise(node); not a load, reduction or sum over rows.
passes::Val emitNode(passes::ValueBuilder& builder, const Cluster& cluster, const ClusterNode& node,
                     mlir::ArrayRef<passes::Val> inputs);
/// The value of node `node` as `dtype`; unchanged if that is the node's own dtype.
passes::Val valueAs(DType dtype, const Cluster& cluster, int32_t node, passes::Val value);

/// The larger or the smaller of two values; NaN if either is NaN. Booleans: or, and.
passes::Val extreme(bool isMax, passes::Val a, passes::Val b, DType dtype);

}  // namespace agspeed::compiler
