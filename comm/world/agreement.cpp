// SPDX-License-Identifier: Apache-2.0
#include "comm/world/agreement.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>
#include <thread>

#include "runtime/base/format.h"
#include "runtime/base/log.h"

namespace agspeed::comm::world {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr milliseconds kLongestPause{50};
/// After this time a rank logs a warning that names the rank it waits for.
constexpr seconds kLateAfter{5};

/// One rank's part in agreeing on an epoch.
class EpochAgreement {
 public:
  EpochAgreement(rendezvous::Store& store, int rank, int size, steady_clock::time_point deadline)
      : store_(store), rank_(rank), size_(size), began_(steady_clock::now()), deadline_(deadline) {}

  /// Rank 0's part: offers an epoch and waits until all ranks have joined it.
  StatusOr<uint32_t> lead() {
    AG_ASSIGN_OR_RETURN(const int64_t number, store_.add(formatText("agspeed/epoch/{}", size_), 1));
    const auto epoch = static_cast<uint32_t>(number);
    AG_RETURN_IF_ERROR(store_.set(offerKey(), std::to_string(epoch)));
    for (int rank = 1; rank < size_; ++rank) AG_RETURN_IF_ERROR(waitForRank(rank, epoch));
    AG_RETURN_IF_ERROR(store_.set(completeKey(epoch), "yes"));
    return epoch;
  }

  /// The part of the other ranks: joins the offered epoch and waits until it is complete.
  StatusOr<uint32_t> follow() {
    uint32_t joined = kNone;
    for (milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
      AG_ASSIGN_OR_RETURN(const uint32_t offered, offer());
      // Read this key after the offer. Rank 0 completes an epoch before it offers the next one. If this rank read the
      // offer after the key, it could miss a completion.
      AG_ASSIGN_OR_RETURN(const bool hasAgreed, isSet(completeKey(joined)));
      if (hasAgreed) return joined;
      if (offered != joined) {
        AG_ASSIGN_OR_RETURN(const bool isComplete, isSet(completeKey(offered)));
        if (!isComplete) {
          AG_RETURN_IF_ERROR(store_.set(joinedKey(offered, rank_), "yes"));
          joined = offered;
        }
      }
      AG_RETURN_IF_ERROR(checkTime(joined == kNone ? "rank 0" : "another rank"));
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  /// No epoch. Epochs are numbered from 1.
  static constexpr uint32_t kNone = 0;

  std::string offerKey() const { return formatText("agspeed/{}/offer", size_); }
  std::string joinedKey(uint32_t epoch, int rank) const {
    return formatText("agspeed/{}/{}/joined/{}", size_, epoch, rank);
  }
  std::string completeKey(uint32_t epoch) const { return formatText("agspeed/{}/{}/complete", size_, epoch); }

  StatusOr<bool> isSet(const std::string& key) {
    AG_ASSIGN_OR_RETURN(const std::optional<std::string> value, store_.tryGet(key));
    return value.has_value();
  }

  /// Returns the epoch that rank 0 offers, or kNone before the first offer.
  StatusOr<uint32_t> offer() {
    AG_ASSIGN_OR_RETURN(const std::optional<std::string> text, store_.tryGet(offerKey()));
    if (!text.has_value()) return kNone;
    return numberIn(offerKey(), *text);
  }

  Status waitForRank(int rank, uint32_t epoch) {
    for (milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
      AG_ASSIGN_OR_RETURN(const bool hasJoined, isSet(joinedKey(epoch, rank)));
      if (hasJoined) return {};
      AG_RETURN_IF_ERROR(checkTime(formatText("rank {}", rank)));
      std::this_thread::sleep_for(pause);
    }
  }

  /// Fails at the deadline, and logs a warning once after kLateAfter. `missing`: the rank that has not joined.
  Status checkTime(const std::string& missing) {
    const auto now = steady_clock::now();
    const bool isOver = now >= deadline_;
    if (!isOver && (now - began_ < kLateAfter || isWarned_)) return {};
    const std::string text = formatText(
        "rank {} of {} has waited for {:.1f} s: {} has not joined the job; it may be late, or have failed to start: "
        "look at its output",
        rank_, size_, std::chrono::duration<double>(now - began_).count(), missing);
    if (isOver) return resourceExhausted("timed out: " + text);
    isWarned_ = true;
    AG_LOG(kWarn, text);
    return {};
  }

  rendezvous::Store& store_;
  const int rank_;
  const int size_;
  const steady_clock::time_point began_;
  const steady_clock::time_point deadline_;
  bool isWarned_ = false;
};

}  // namespace

StatusOr<uint32_t> agreeOnEpoch(rendezvous::Store& store, int rank, int size, steady_clock::time_point deadline) {
  EpochAgreement agreement(store, rank, size, deadline);
  return rank == 0 ? agreement.lead() : agreement.follow();
}

StatusOr<uint32_t> numberIn(const std::string& key, const std::string& text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return dataLoss("the store's {} is '{}', not a number", key, text);
  }
  return number;
}

}  // namespace agspeed::comm::world
