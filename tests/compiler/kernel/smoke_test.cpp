// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "compiler/kernel/kernel_library.h"

namespace agspeed::compiler {

TEST(BuildKernels, AddsTwoArrays) {
  Cluster cluster;
  cluster.operands = {{DType::kF32}, {DType::kF32}, {DType::kF32, true}};
  cluster.nodes = {{PointwiseOp::kLoad, DType::kF32, {}, 0},
                   {PointwiseOp::kLoad, DType::kF32, {}, 1},
                   {PointwiseOp::kAdd, DType::kF32, {0, 1}}};
  cluster.stores = {{2, 2}};
  KernelOptions options;
  auto library = buildKernels({cluster}, options, nullptr);
  ASSERT_TRUE(library.isOk()) << library.status().toString();
  std::vector<float> a(100), b(100), c(100);
  for (int i = 0; i < 100; ++i) a[i] = i, b[i] = 2 * i;
  void* pointers[] = {a.data(), b.data(), c.data()};
  int64_t integers[] = {100, 1, 1, 1};
  library.value()->kernel(0)(pointers, integers, 0, 100);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(c[i], 3 * i);
}

}  // namespace agspeed::compiler
