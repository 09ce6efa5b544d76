// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/random_draws.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <mutex>

#include "runtime/random/mersenne_twister.h"

namespace agspeed::runtime::aten {
namespace {

using random::MersenneTwister;

/// Draws from a generator whose mutex the caller holds.
void draw(at::CPUGeneratorImpl& generator, double probability, at::Tensor& mask) {
  at::mt19937 engine = generator.engine();
  at::mt19937_data_pod data = engine.data();
  // torch computes new words when the number of words that are left, plus one, reaches 1.
  MersenneTwister twister{.words = data.state_, .next = data.left_ == 1 ? MersenneTwister::kNumWords : data.next_};
  random::drawBernoulli(twister, probability, static_cast<uint8_t*>(mask.mutable_data_ptr()), mask.numel());
  if (mask.numel() == 0) return;
  data.state_ = twister.words;
  data.next_ = static_cast<uint32_t>(twister.next);
  data.left_ = static_cast<int>(MersenneTwister::kNumWords - twister.next + 1);
  engine.set_data(data);
  generator.set_engine(engine);
}

/// Returns whether torch draws the same mask as `draw`, and leaves its generator in the same state. torch uses another
/// generator on some processors.
bool drawsLikeTorch() {
  constexpr int64_t kNumElements = 4096;
  at::Generator mine = at::detail::createCPUGenerator(1), theirs = at::detail::createCPUGenerator(1);
  for (const double probability : {0.9, 0.25}) {
    at::Tensor drawn = at::empty({kNumElements}, at::kBool);
    draw(*at::check_generator<at::CPUGeneratorImpl>(mine), probability, drawn);
    if (!drawn.equal(at::bernoulli(drawn, probability, theirs))) return false;
  }
  return mine.get_state().equal(theirs.get_state());
}

}  // namespace

at::Tensor bernoulliMask(at::IntArrayRef sizes, double probability) {
  static const bool isKnown = drawsLikeTorch();
  at::Tensor mask = at::empty(sizes, at::kBool);
  if (!isKnown) return at::bernoulli(mask, probability);
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  draw(*at::check_generator<at::CPUGeneratorImpl>(generator), probability, mask);
  return mask;
}

TORCH_LIBRARY_FRAGMENT(agspeed, library) {
  library.def("bernoulli_mask(SymInt[] sizes, float probability) -> Tensor", {at::Tag::nondeterministic_seeded});
  library.impl("bernoulli_mask", c10::DispatchKey::CompositeExplicitAutograd, bernoulliMask);
}

}  // namespace agspeed::runtime::aten
