// SPDX-License-Identifier: Apache-2.0
// The judgement of an arm after each block: pure functions of the samples of arms and the configuration.
//
// An arm is *accepted* if the whole interval of its ratio to eager is below 1 - minGain, and the ratio of summed times
// does not contradict this. It *loses* if it needs too much memory, is far behind the best, cannot be better than
// another one by minGain, cannot reach the gain any more, or has used up its pairs. Accepting is strict, because a
// wrong acceptance makes training slower. The other rules stop as soon as more pairs would hardly change the user's
// gain. Pairs of an earlier process count until new ones contradict them; an arm is never judged by them alone.
//
// No state; safe from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "runtime/tune/arms/arm.h"

namespace agspeed::runtime::tune {

/// The result for an arm on trial.
struct Judgement {
  enum class Kind {
    kContinue,    ///< more pairs are needed
    kAccept,      ///< it is faster than eager
    kLose,        ///< its typical step is too slow
    kLoseTo,      ///< its typical step is no better than a rival's
    kNotFaster,   ///< it is not faster than eager; arms that lost to it are measured again
    kTooLarge,    ///< it needs too much memory
    kDisqualify,  ///< it loses for another reason than its typical step
  };
  Kind kind = Kind::kContinue;
  std::string reason = {};
  bool isConfirmed = false;  ///< for kAccept: it needs no further pairs before the decision
};

/// The facts about other arms that an arm on trial is compared with.
struct Standing {
  std::map<int32_t, int64_t> eagerPeaks = {};  ///< eager's peak of memory by shape class
  double bestRatio = 1;                        ///< the lowest cautiousRatio() of all arms
  std::string rival = {};  ///< an arm to which this one loses, see losesTo(); empty if there is none
};

/// Whether the arm has enough pairs of this process to be judged.
bool isJudgeable(const Arm& arm, const TunerConfig& config);
/// Judges the arm by its pairs with eager. Requires: isJudgeable(), and dropContradicted() was called on the pairs.
Judgement judgeVersusEager(const Arm& arm, const Standing& standing, const TunerConfig& config);

struct DuelResult {
  bool isWon = false;    ///< whether the arm under test won
  std::string evidence;  ///< why the other arm lost
};
/// Judges a duel. Returns nothing while more pairs are needed.
std::optional<DuelResult> judgeDuel(const Comparison& duel, const TunerConfig& config);

/// Whether the arm looks no better than its rival and can hardly be better by minGain. The choice between them then
/// makes no difference, and the rival wins.
bool cannotBeat(const Arm& arm, const Arm& rival, const TunerConfig& config);
/// Whether the rival may still be chosen, the arm cannot beat it, and the rival's summed times are below eager's.
bool losesTo(const Arm& arm, const Arm& rival, const TunerConfig& config);
/// Returns a cautious estimate of the arm's ratio to eager; 1 without enough pairs.
double cautiousRatio(const Arm& arm);
/// Whether nearly all pairs show a gain of at least `gain`; ten of ten are enough. This happens if the gain is large or
/// the machine is quiet.
bool isClearGain(const Arm& arm, double gain);
/// Whether the first steps of the arm are all far slower than eager, so that no pairs are needed.
bool isHopeless(const Arm& arm, const Arm& eager);
/// Whether the arm's slow steps cost at least half of the gain of its typical step, judged by all its steps, not only
/// by pairs.
bool hasSlowSteps(const Arm& arm, const Arm& eager);

}  // namespace agspeed::runtime::tune
