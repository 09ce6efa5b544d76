// SPDX-License-Identifier: Apache-2.0
// A simulated machine, training loop and driver. Carries out the Tuner's actions on arms of known speed and noise.
// Everything follows from the seed, which tests print.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/tune/tuner.h"

namespace agspeed::runtime::tune::testing {

/// How step times scatter around their true value.
struct Noise {
  double sigma = 0.02;         ///< log-normal
  double tailProbability = 0;  ///< Pareto-like slow steps ...
  double tailScale = 3;        ///< ... of at least this factor
  double burstEvery = 0;       ///< steps between bursts of outside load
  double burstSteps = 20;
  double burstFactor = 1.5;
  double slowModeProbability = 0;  ///< a second mode of the machine, which affects all arms
  double slowModeFactor = 1.3;
};

struct SimulatedArm {
  std::string name;
  double ratio = 1;           ///< true step time over eager's
  double compileSeconds = 1;  ///< without other load, at normal priority
  double loadSeconds = 0.2;   ///< foreground
  int32_t numParts = 1;       ///< of a load, which may be interrupted between them
  int64_t peakBytes = 100 << 20;
  double warmupFactor = 1;  ///< factor of the first steps after loading
  int64_t warmupSteps = 0;
  double slowProbability = 0;  ///< this arm's own slow steps
  double slowFactor = 1;
  std::string standsInFor = {};
  ArmState outcome = ArmState::kReady;  ///< kRejected, kFailed or kSkipped: the result that the driver reports instead
};

struct World {
  uint64_t seed = 1;
  Mode mode = Mode::kAuto;
  double eagerSeconds = 0.02;
  double captureSeconds = 1.0;
  std::vector<SimulatedArm> arms;
  Noise noise;
  std::function<double(int64_t step)> machine;                ///< speed factor of the machine by step; 1 if empty
  std::function<double(const std::string&, int64_t)> change;  ///< factor of one arm by step
  std::function<bool(int64_t step)> disturbed;  ///< steps hit, and reported, as outside load: 500 times slower
  std::function<bool(int64_t step)> grows;      ///< steps that capture another graph
  int32_t maxLate = 0;      ///< most steps that run before an earlier one is reported; the number varies
  double missingShare = 0;  ///< share of the steps whose times never arrive; they are reported as skipped
  int32_t numShapes = 1;
  bool takesNaps = false;          ///< reports quiet steps in one sum, 240 at most, as the driver in Python does
  bool doShapesTakeTurns = false;  ///< otherwise each step draws one
  double idleInflation = 1.04;
  double raisedInflation = 2.5;
  double idleProgress = 0.15;  ///< speed of a compile at idle priority, relative to normal
  std::string findings;        ///< findings of an earlier tuner, passed after the capture; none if empty
  TunerConfig config;          ///< mode and arms are filled in from above
};

struct Outcome {
  std::string chosen;  ///< current arm at the end
  std::string reason;
  double wallSeconds = 0;
  double slowdownSeconds = 0;
  double maxBudgetShare = 0;  ///< highest true slow-down / seconds trained, over the run
  int64_t decidedAtStep = -1;
  double longestPause = 0;  ///< seconds between two steps
  int64_t stepsBesideCompile = 0;
  int64_t numActions = 0;
  std::map<std::string, int64_t> stepsByArm;
  std::map<std::string, int64_t> compiles;
  std::vector<std::string> rollbacks;
};

class Simulator {
 public:
  explicit Simulator(World world);
  /// Runs training steps. Call it again to run more.
  void run(int64_t numSteps);
  Tuner& tuner() { return *tuner_; }
  World& world() { return world_; }
  Outcome outcome() const;

 private:
  /// Returns true if the tuner has to be asked again before a step.
  bool carryOut(const Action& action);
  bool wait(const Action& action);
  bool load(const Action& action);
  void pause(double seconds);
  bool startCompile(const Action& action);
  void finishCompile();
  void stepOnce();
  /// Reports the steps that are due to the tuner, in order.
  void report(const StepFinished& step);
  void fallAsleep();
  double drawSeconds(const std::string& arm, int32_t shape);
  double noiseFactor();
  const SimulatedArm* find(const std::string& arm) const;

  World world_;
  std::mt19937_64 random_;
  std::unique_ptr<Tuner> tuner_;
  Outcome outcome_;
  int64_t step_ = 0;
  std::string running_{kEagerArm};
  std::string compiling_;
  double compileLeft_ = 0;
  double pause_ = 0;
  std::map<std::string, int32_t> partsLoaded_;
  Level level_ = Level::kIdle;
  double raisedLeft_ = 0;
  double trueSlowdown_ = 0;
  double trained_ = 0;
  bool hasReported_ = true;  ///< the latest step was reported, so the tuner may be asked for actions
  std::deque<StepFinished> unreported_;
  int64_t quietLeft_ = 0;
  int64_t numSkipped_ = 0;
  double skippedSeconds_ = 0;
};

/// Seconds of the best fixed choice over `numSteps` steps: eager, or one arm that first pays for its capture, compile
/// and load in the foreground, as a user does who compiles by hand. `capturesOnly` leaves out compile and load.
double bestFixedSeconds(const World& world, int64_t numSteps, bool capturesOnly);

}  // namespace agspeed::runtime::tune::testing
