// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/random_draws.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace agspeed::runtime::aten {
namespace {

TEST(RandomDrawsTest, MasksFollowTorchsGenerator) {
  const std::vector<std::vector<int64_t>> shapes = {{7}, {0}, {1000, 3}, {}, {1}, {64, 16, 65}, {5, 0, 2}, {311}};
  for (const double probability : {0.0, 0.25, 0.9, 1.0}) {
    SCOPED_TRACE(testing::Message() << "probability " << probability);
    at::manual_seed(11);
    std::vector<at::Tensor> expected;
    for (const std::vector<int64_t>& shape : shapes) {
      expected.push_back(at::empty(shape, at::kBool).bernoulli_(probability));
      expected.push_back(at::rand({3}));
      expected.push_back(at::randn({3}));
    }
    at::manual_seed(11);
    size_t at = 0;
    for (const std::vector<int64_t>& shape : shapes) {
      EXPECT_TRUE(bernoulliMask(shape, probability).equal(expected[at++]));
      EXPECT_TRUE(at::rand({3}).equal(expected[at++]));
      EXPECT_TRUE(at::randn({3}).equal(expected[at++]));
    }
  }
}

}  // namespace
}  // namespace agspeed::runtime::aten
