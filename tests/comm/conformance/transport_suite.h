// SPDX-License-Identifier: Apache-2.0
// What every reliable Transport must do for messages to be made of it, written once. A transport adds a line to
// transports_test.cpp; the tests stand in transport_suite.cpp. One thread drives all ranks.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "tests/comm/conformance/frame_group.h"

namespace agspeed::comm {

using TransportGroup = FrameGroup<Transport>;

struct TransportCase {
  std::string name;
  TransportGroup::Make make;
};

class TransportConformance : public testing::TestWithParam<TransportCase> {};

/// Prints the name of a case where GoogleTest would print its bytes.
inline void PrintTo(const TransportCase& transport, std::ostream* stream) { *stream << transport.name; }

}  // namespace agspeed::comm
