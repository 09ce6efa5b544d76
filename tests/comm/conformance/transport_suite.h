// SPDX-License-Identifier: Apache-2.0
// The conformance suite of reliable Transports, on which messages are built. To test a transport, add a line to
// transports_test.cpp. The tests are in transport_suite.cpp. One thread drives all ranks.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "tests/comm/conformance/frame_group.h"

namespace agspeed::comm::conformance {

using TransportGroup = FrameGroup<transport::Transport>;

struct TransportCase {
  std::string name;
  TransportGroup::Make make;
};

class TransportConformance : public testing::TestWithParam<TransportCase> {};

/// Makes GoogleTest print the name of a case instead of its bytes.
inline void PrintTo(const TransportCase& transport, std::ostream* stream) { *stream << transport.name; }

}  // namespace agspeed::comm::conformance
