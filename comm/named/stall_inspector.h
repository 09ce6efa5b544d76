// SPDX-License-Identifier: Apache-2.0
// StallInspector: finds operations that some ranks started long ago and other ranks have not started. Its messages are
// Horovod's, so that users can search for them. Only the coordinator's rank uses it. Threading: one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "comm/io/clock.h"
#include "comm/named/coordinator/coordinator.h"

namespace agspeed::comm::named {

class StallInspector {
 public:
  /// `warning`: the waiting time after which an operation is logged; zero: never. `shutdown`: the waiting time after
  /// which the group must end; zero: never. `shutdown` has no effect if `warning` is zero. `members`: the world ranks
  /// of the group's ranks, for the log.
  StallInspector(io::Clock::duration warning, io::Clock::duration shutdown, std::vector<int> members)
      : warning_(warning), shutdown_(shutdown), members_(std::move(members)) {}

  /// Logs stalled operations if a warning is due. Returns why the group must end, or an empty text if it need not end.
  /// Checks `shutdown` only when it logs a warning.
  std::string inspect(const coordinator::Coordinator& coordinator, io::Clock::time_point now);

 private:
  /// Returns Horovod's text about stalled operations, with the names that each rank has not started.
  std::string describe(const std::vector<coordinator::Coordinator::Stalled>& all) const;

  const io::Clock::duration warning_, shutdown_;
  const std::vector<int> members_;
  io::Clock::time_point nextWarning_{};
};

}  // namespace agspeed::comm::named
