// SPDX-License-Identifier: Apache-2.0
// The conformance suite of Messenger. To test an implementation, add a file that instantiates MessengerConformance with
// its cases. The tests are in messenger_suite.cpp. One thread drives all ranks unless a test says otherwise.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "comm/messaging/messenger.h"

namespace agspeed::comm::conformance {

/// Some connected messengers, one per rank. Destroying the group closes them.
class MessengerGroup {
 public:
  virtual ~MessengerGroup() = default;
  virtual messaging::Messenger& messenger(int rank) = 0;
};

struct MessengerCase {
  std::string name;
  std::function<std::unique_ptr<MessengerGroup>(int size)> make;
};

class MessengerConformance : public testing::TestWithParam<MessengerCase> {};

/// Makes GoogleTest print the name of a case instead of its bytes.
inline void PrintTo(const MessengerCase& messengers, std::ostream* stream) { *stream << messengers.name; }

}  // namespace agspeed::comm::conformance
