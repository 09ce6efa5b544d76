// SPDX-License-Identifier: Apache-2.0
// The only header of comm that frontends and bindings include.
//
//   Store         how the ranks of a job find each other (rendezvous/store.h): openRendezvousStore() makes one, or a
//                 frontend brings its own
//   World         the rails to the other ranks and the engine that drives them; one for all groups of a process
//   Communicator  a group of ranks: collectives and messages, each an Operation
//   NamedGroup    a group of ranks: collectives that ranks start in any order, matched by name
//   Plan          which algorithms run, if a caller wants to choose
//
//   auto store = openRendezvousStore("file:/shared/job-7", rank, size, deadline).value();
//   auto world = World::create(store, rank, size).value();
//   auto group = Communicator::create(world->engine(), {.name = "world"}).value();
//   auto sum = group->start({.collective = Collective::kAllReduce, .dtype = DType::kF32, .input = {bytes},
//                            .output = {bytes}, .op = ReduceOp::kSum});
//   Status status = sum->wait();
//
// comm/examples/all_reduce.cpp is a complete program. Failures are returned as Status; nothing throws. The headers
// state threading and ownership. In short: any thread may call, and the caller keeps a world until its communicators
// and the handles of their operations are destroyed.
#pragma once

#include "comm/collective/communicator.h"  // IWYU pragma: export
#include "comm/engine/call.h"              // IWYU pragma: export
#include "comm/engine/operation.h"         // IWYU pragma: export
#include "comm/named/named_group.h"        // IWYU pragma: export
#include "comm/plan/plan.h"                // IWYU pragma: export
#include "comm/rendezvous/store.h"         // IWYU pragma: export
#include "comm/topology/interfaces.h"      // IWYU pragma: export
#include "comm/world/flight_record.h"      // IWYU pragma: export
#include "comm/world/inspection.h"         // IWYU pragma: export
#include "comm/world/named_groups.h"       // IWYU pragma: export
#include "comm/world/new_members.h"        // IWYU pragma: export
#include "comm/world/rendezvous_store.h"   // IWYU pragma: export
#include "comm/world/world.h"              // IWYU pragma: export

// The names that frontends use. All other names stay in the namespace of their folder.
namespace agspeed::comm {

using collective::Communicator;
using collective::GroupOptions;
using collective::kAnyRank;
using collective::OperationOptions;
using coordinator::FusionOrder;
using coordinator::FusionPlan;
using coordinator::toString;
using engine::BufferList;
using engine::CollectiveCall;
using engine::OperationHandle;
using engine::Readiness;
using engine::splitEvenly;
using io::Clock;
using named::Dimensions;
using named::elementsPerRow;
using named::kNamedKinds;
using named::NamedCall;
using named::NamedGroup;
using named::NamedHandle;
using named::NamedKind;
using named::NamedOperation;
using named::NamedOptions;
using named::NamedReduction;
using named::NamedRows;
using named::NamedStats;
using named::numElements;
using named::Request;
using named::rowsOf;
using named::Timeline;
using named::toString;
using plan::Plan;
using plan::PlanRule;
using reduce::ReduceOp;
using rendezvous::FileStore;
using rendezvous::PrefixStore;
using rendezvous::Store;
using schedule::Algorithm;
using schedule::algorithms;
using schedule::Collective;
using schedule::findAlgorithm;
using schedule::hasRoot;
using schedule::Order;
using schedule::toString;
using topology::InterfaceChoice;
using topology::interfaceSelection;
using topology::InterfaceSelector;
using topology::listInterfaces;
using topology::toString;
using world::claimRank;
using world::createNamedGroup;
using world::FlightFacts;
using world::FlightRecorder;
using world::FlightRing;
using world::groupPrefix;
using world::makeHandle;
using world::NewMembers;
using world::openRendezvousStore;
using world::setStackReader;
using world::World;

}  // namespace agspeed::comm
