// SPDX-License-Identifier: Apache-2.0
// Tuner, GroupTuner and TuningDatabase. Python uses plain dicts: configuration in, actions, snapshots and records out.
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include <pybind11/stl.h>

#include "python/csrc/bindings.h"
#include "runtime/tune/group_tuner.h"
#include "runtime/tune/store/database.h"
#include "runtime/tune/tuner.h"

namespace agspeed::python {
namespace {

namespace py = pybind11;
using namespace runtime::tune;  // only in this source file, where every name below comes from it

/// Errors of these classes are always mistakes of the caller.
void throwIfFailed(const Status& status) {
  if (!status.isOk()) throw py::value_error(status.message());
}

template <typename T>
T valueOrThrow(StatusOr<T> result) {
  throwIfFailed(result.status());
  return std::move(result).value();
}

py::object loadJson(const std::string& text) { return py::module_::import("json").attr("loads")(text); }

std::string dumpJson(const py::object& value) {
  return py::module_::import("json").attr("dumps")(value).cast<std::string>();
}

/// Visits every number and text of TunerConfig that Python may set; one row each.
template <typename Visit>
void visitFields(TunerConfig& config, Visit visit) {
  visit("budget_fraction", config.budgetFraction);
  visit("budget_seconds", config.budgetSeconds);
  visit("capture_seconds", config.captureSeconds);
  visit("confidence", config.confidence);
  visit("drop_ratio", config.dropRatio);
  visit("fast_start_seconds", config.fastStartSeconds);
  visit("guard_fraction", config.guardFraction);
  visit("has_spare_cores", config.hasSpareCores);
  visit("max_late_steps", config.maxLateSteps);
  visit("max_pause_seconds", config.maxPauseSeconds);
  visit("max_pairs", config.maxPairs);
  visit("max_retunes", config.maxRetunes);
  visit("max_run_steps", config.maxRunSteps);
  visit("memory_fraction", config.memoryFraction);
  visit("memory_slack_bytes", config.memorySlackBytes);
  visit("min_gain", config.minGain);
  visit("min_pairs", config.minPairs);
  visit("min_run_seconds", config.minRunSeconds);
  visit("pinned_arm", config.pinnedArm);
  visit("retune_after_steps", config.retuneAfterSteps);
  visit("search_fraction", config.searchFraction);
  visit("target_half_width", config.targetHalfWidth);
  visit("warmup_steps", config.warmupSteps);
}

/// An arm is its name, or {"name", "compile_seconds", "foreground_seconds", "stands_in_for"}.
ArmSpec toArmSpec(const py::handle& value) {
  if (py::isinstance<py::str>(value)) return {.name = value.cast<std::string>()};
  const auto fields = value.cast<py::dict>();
  const auto number = [&](const char* name) { return fields.contains(name) ? fields[name].cast<double>() : 0.0; };
  const std::string standsInFor = fields.contains("stands_in_for") ? fields["stands_in_for"].cast<std::string>() : "";
  return {fields["name"].cast<std::string>(), number("compile_seconds"), number("foreground_seconds"), standsInFor};
}

TunerConfig toConfig(const py::dict& values) {
  TunerConfig config;
  size_t numKnown = 0;
  const auto take = [&](const char* name, auto& field) {
    if (!values.contains(name)) return;
    ++numKnown;
    const py::object value = values[name];
    if (!value.is_none()) field = value.cast<std::decay_t<decltype(field)>>();
  };
  visitFields(config, take);
  if (values.contains("mode")) {
    ++numKnown;
    config.mode = valueOrThrow(parseMode(values["mode"].cast<std::string>()));
  }
  if (values.contains("arms")) {
    ++numKnown;
    for (const py::handle& arm : values["arms"]) config.arms.push_back(toArmSpec(arm));
  }
  if (numKnown != values.size()) {
    throw py::value_error("tuner: the configuration has an unknown field among " +
                          py::repr(values.attr("keys")()).cast<std::string>());
  }
  return config;
}

py::dict toDict(const Action& action) {
  py::dict result;
  result["kind"] = toString(action.kind);
  result["arm"] = action.arm;
  result["level"] = toString(action.level);
  result["seconds"] = action.seconds;
  result["reason"] = action.reason;
  return result;
}

py::object optionalSteps(int64_t steps) { return steps == Tuner::kForever ? py::none() : py::object(py::int_(steps)); }

const Tuner& queried(const Tuner& tuner) { return tuner; }
const Tuner& queried(const GroupTuner& group) { return group.tuner(); }

/// The type that Python passes for a field of an event, and its value.
template <typename Field, typename Value = typename Field::Type>
using EventArgument = std::conditional_t<
    std::is_same_v<Value, ArmState>, std::string,
    std::conditional_t<std::is_same_v<Value, ArmSpec> || Field::kKind == FieldKind::kJson, py::object, Value>>;

template <typename Field>
typename Field::Type toValue(EventArgument<Field> argument) {
  if constexpr (Field::kKind == FieldKind::kJson) {
    return dumpJson(argument);
  } else if constexpr (std::is_same_v<typename Field::Type, ArmState>) {
    return valueOrThrow(parseArmState(argument));
  } else if constexpr (std::is_same_v<typename Field::Type, ArmSpec>) {
    return toArmSpec(argument);
  } else {
    return argument;
  }
}

template <typename Field>
auto toKeyword(const Field& field) {
  if constexpr (Field::kKind == FieldKind::kOptional) {
    return py::arg(field.name) = EventArgument<Field>{};
  } else {
    return py::arg(field.name);
  }
}

/// Binds an event as a method with its name, whose arguments are its fields.
template <typename Event, typename Either>
void bindEvent(py::class_<Either>& bound) {
  const auto bindFields = [&]<typename... Fields>(const Fields&... fields) {
    const auto report = [](Either& tuner, EventArgument<Fields>... arguments) {
      throwIfFailed(tuner.report(Event{toValue<Fields>(std::move(arguments))...}));
    };
    bound.def(Event::kName, report, toKeyword(fields)...);
  };
  std::apply(bindFields, Event::kFields);
}

/// Binds all events, which are the same for a Tuner and a GroupTuner.
template <typename Either>
void bindEvents(py::class_<Either>& bound) {
  const auto bindAll = [&]<typename... Events>(std::type_identity<std::variant<Events...>>) {
    (bindEvent<Events>(bound), ...);
  };
  bindAll(std::type_identity<TunerEvent>());
}

template <typename Either>
void bindQueries(py::class_<Either>& bound) {
  const auto record = [](const Either& tuner) -> py::object {
    return queried(tuner).decision() ? loadJson(queried(tuner).decisionRecord()) : py::none();
  };
  bound.def_property_readonly("current", [](const Either& tuner) { return queried(tuner).current(); })
      .def_property_readonly("num_findings", [](const Either& tuner) { return queried(tuner).numFindings(); })
      .def_property_readonly("phase", [](const Either& tuner) { return toString(queried(tuner).phase()); })
      .def_property_readonly("status", [](const Either& tuner) { return queried(tuner).status(); })
      .def_property_readonly("status_reason", [](const Either& tuner) { return queried(tuner).statusReason(); })
      .def("findings", [](const Either& tuner) { return loadJson(queried(tuner).findings()); })
      .def("snapshot", [](const Either& tuner) { return loadJson(queried(tuner).snapshot()); })
      .def("decision_record", record);
}

py::list toList(const std::vector<Action>& actions) {
  py::list result;
  for (const Action& action : actions) result.append(toDict(action));
  return result;
}

void bindTunerClass(py::module_& module) {
  const auto create = [](const py::dict& config) { return valueOrThrow(Tuner::create(toConfig(config))); };
  py::class_<Tuner> bound(module, "Tuner");
  bound.def(py::init(create), py::arg("config"))
      .def("advance", [](Tuner& tuner) { return toList(tuner.advance()); })
      .def_property_readonly("quiet_steps", [](const Tuner& tuner) { return optionalSteps(tuner.quietSteps()); });
  bindEvents(bound);
  bindQueries(bound);
}

void bindGroupTunerClass(py::module_& module) {
  const auto create = [](const py::dict& config, std::vector<std::string> names) {
    return valueOrThrow(GroupTuner::create(toConfig(config), std::move(names)));
  };
  const auto sync = [](GroupTuner& group, const std::vector<std::string>& records) {
    throwIfFailed(group.sync(records));
  };
  py::class_<GroupTuner> bound(module, "GroupTuner");
  bound.def(py::init(create), py::arg("config"), py::arg("names"))
      .def("advance", [](GroupTuner& group) { return toList(group.takeActions()); })
      .def("take_record", [](GroupTuner& group) { return py::bytes(group.takeRecord()); })
      .def("sync", sync, py::arg("records"))
      .def("leave", &GroupTuner::leave, py::arg("reason"))
      .def("end", &GroupTuner::end, py::arg("reason"))
      .def_property_readonly("num_quiet_syncs", &GroupTuner::numQuietSyncs)
      .def_property_readonly("is_refining", &GroupTuner::isRefining)
      .def_property_readonly("is_settled", &GroupTuner::isSettled)
      .def_property_readonly("is_over_because", [](const GroupTuner& group) { return group.isOverBecause(); })
      .def("recheck", &GroupTuner::recheck)
      .def("postpone_recheck", &GroupTuner::postponeRecheck)
      .def_property_readonly("is_rechecking", &GroupTuner::isRechecking)
      .def_property_readonly("is_suspicious", &GroupTuner::isSuspicious)
      .def_property_readonly("quiet_steps", [](const GroupTuner& group) { return optionalSteps(group.quietSteps()); });
  bindEvents(bound);
  bindQueries(bound);
}

py::dict toDict(const DatabaseRow& row) {
  py::dict result;
  result["key"] = row.isIntact ? loadJson(row.key) : py::none();
  result["record"] = row.isIntact ? loadJson(row.record) : py::none();
  result["created"] = row.created;
  result["used"] = row.used;
  result["uses"] = row.uses;
  result["intact"] = row.isIntact;
  return result;
}

void bindDatabaseClass(py::module_& module) {
  const auto find = [](TuningDatabase& database, const py::dict& key, int64_t now) -> py::object {
    const auto record = valueOrThrow(database.find(dumpJson(key), now));
    return record ? loadJson(*record) : py::none();
  };
  const auto store = [](TuningDatabase& database, const py::dict& key, const py::dict& record, int64_t now) {
    throwIfFailed(database.store(dumpJson(key), dumpJson(record), now));
  };
  const auto storeUnfinished = [](TuningDatabase& database, const py::dict& key, const py::dict& record, int64_t now) {
    return valueOrThrow(database.storeUnfinished(dumpJson(key), dumpJson(record), now));
  };
  const auto list = [](TuningDatabase& database) {
    py::list rows;
    for (const DatabaseRow& row : database.list()) rows.append(toDict(row));
    return rows;
  };
  const auto importText = [](TuningDatabase& database, const std::string& text, int64_t now) {
    return valueOrThrow(database.importText(text, now));
  };
  py::class_<TuningDatabase>(module, "TuningDatabase")
      .def(py::init<std::string>(), py::arg("path"))
      .def_property_readonly("is_usable", &TuningDatabase::isUsable)
      .def_property_readonly("warning", &TuningDatabase::warning)
      .def_property_readonly("path", &TuningDatabase::path)
      .def("find", find, py::arg("key"), py::arg("now"))
      .def("store", store, py::arg("key"), py::arg("record"), py::arg("now"))
      .def("store_unfinished", storeUnfinished, py::arg("key"), py::arg("record"), py::arg("now"))
      .def("list", list)
      .def("prune", &TuningDatabase::prune, py::arg("used_before"), py::arg("max_rows"))
      .def("export_text", &TuningDatabase::exportText)
      .def("import_text", importText, py::arg("text"), py::arg("now"));
}

}  // namespace

void bindTuner(pybind11::module_& module) {
  bindTunerClass(module);
  bindGroupTunerClass(module);
  bindDatabaseClass(module);
}

}  // namespace agspeed::python
