// SPDX-License-Identifier: Apache-2.0
// StallInspector: notices operations that some ranks have long started and others have not. Its texts are Horovod's.
// The coordinator's rank calls it. Threading: one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "comm/io/clock.h"
#include "comm/named/coordinator.h"

namespace agspeed::comm {

class StallInspector {
 public:
  /// Logs after `warning`, ends the group after `shutdown`; zero: never. `members`: the numbers of the group's ranks in
  /// messages.
  StallInspector(Clock::duration warning, Clock::duration shutdown, std::vector<int> members)
      : warning_(warning), shutdown_(shutdown), members_(std::move(members)) {}

  /// Logs stalled operations when a warning is due. Returns: why the group has to end; empty if it does not.
  std::string inspect(const Coordinator& coordinator, Clock::time_point now);

 private:
  std::string describe(const std::vector<Coordinator::Stalled>& all) const;

  const Clock::duration warning_, shutdown_;
  const std::vector<int> members_;
  Clock::time_point nextWarning_{};
};

}  // namespace agspeed::comm
