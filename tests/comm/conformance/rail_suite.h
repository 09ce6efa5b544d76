// SPDX-License-Identifier: Apache-2.0
// The conformance suite of Rail. To test a rail, add a line to rails_test.cpp. The tests are in rail_suite.cpp. One
// thread drives both ranks. A rail that declares itself unreliable may lose, repeat and reorder frames.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "comm/transport/rail.h"
#include "tests/comm/conformance/frame_group.h"

namespace agspeed::comm::conformance {

using RailGroup = FrameGroup<transport::Rail>;

struct RailCase {
  std::string name;
  RailGroup::Make make;
};

class RailConformance : public testing::TestWithParam<RailCase> {};

/// Makes GoogleTest print the name of a case instead of its bytes.
inline void PrintTo(const RailCase& rail, std::ostream* stream) { *stream << rail.name; }

}  // namespace agspeed::comm::conformance
