// SPDX-License-Identifier: Apache-2.0
// What a frontend needs of comm: an Engine over a Messenger, Communicators on it, CollectiveCalls and Operations.
//
//   Engine engine(messenger);
//   auto world = Communicator::create(engine, {.name = "world"}).value();
//   auto sum = world->start({.collective = Collective::kAllReduce, .dtype = DType::kF32, .input = {bytes},
//                            .output = {bytes}, .op = ReduceOp::kSum});
//   Status status = sum->wait();
#pragma once

#include "comm/collective/call.h"          // IWYU pragma: export
#include "comm/collective/communicator.h"  // IWYU pragma: export
#include "comm/collective/engine.h"        // IWYU pragma: export
#include "comm/collective/operation.h"     // IWYU pragma: export
#include "comm/plan/plan.h"                // IWYU pragma: export
