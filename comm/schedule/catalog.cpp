// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule/catalog.h"

#include <algorithm>

#include "comm/schedule/algorithms.h"

namespace agspeed::comm::schedule {

namespace {

constexpr Algorithm kAlgorithms[] = {
#define AG_ALGORITHM(collective, name, function, order, memory) \
  {Collective::collective, name, function, Order::order, Memory::memory},
#include "comm/schedule/catalog.def"
#undef AG_ALGORITHM
};

}  // namespace

std::span<const Algorithm> algorithms() { return kAlgorithms; }

bool usesLocalGroups(const Algorithm& algorithm) { return algorithm.name.starts_with("hierarchical"); }

const Algorithm* findAlgorithm(Collective collective, std::string_view name) {
  const auto* at = std::find_if(std::begin(kAlgorithms), std::end(kAlgorithms), [&](const Algorithm& algorithm) {
    return algorithm.collective == collective && algorithm.name == name;
  });
  return at == std::end(kAlgorithms) ? nullptr : at;
}

}  // namespace agspeed::comm::schedule
