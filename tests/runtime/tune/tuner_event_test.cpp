// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/tuner_event.h"

#include <gtest/gtest.h>

#include <set>
#include <type_traits>

namespace agspeed::runtime::tune {
namespace {

TEST(TunerEvent, TheLogShowsItsNameAndFields) {
  EXPECT_EQ(toText(ArmChanged{"native", ArmState::kRejected, "wrong", 1.5, 0.25}),
            "arm_changed arm=native state=rejected reason=wrong background_seconds=1.5 foreground_seconds=0.25");
  EXPECT_EQ(toText(StepFinished{"eager", 0.01, "8x8", 5, true}),
            "step_finished arm=eager seconds=0.01 shape=8x8 peak_bytes=5 disturbed=true");
  EXPECT_EQ(toText(ArmAdded{{.name = "mixed"}}), "add_arm arm=mixed");
  EXPECT_EQ(toText(CaptureGrew{}), "capture_grew");
  EXPECT_EQ(toText(Resumed{"{}"}), "resume findings=(2 bytes)");
}

TEST(TunerEvent, EveryKindHasItsOwnName) {
  std::set<std::string> names;
  const auto collect = [&]<typename... Events>(std::type_identity<std::variant<Events...>>) {
    (names.insert(Events::kName), ...);
  };
  collect(std::type_identity<TunerEvent>());
  EXPECT_EQ(names.size(), std::variant_size_v<TunerEvent>);
}

}  // namespace
}  // namespace agspeed::runtime::tune
