// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/store/database.h"

#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "runtime/base/format.h"
#include "runtime/base/json_depth.h"
#include "runtime/tune/store/database_file.h"
#include "runtime/tune/store/database_format.h"

namespace agspeed::runtime::tune {
namespace {

using Json = nlohmann::json;

constexpr int kBusyTimeoutMs = 5000;
constexpr int kUnfinishedTimeoutMs = 20;
constexpr std::array<const char*, 7> kRequiredMembers = {"device", "dtypes",  "graph",   "isa",
                                                         "shapes", "threads", "versions"};

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json parseObject(std::string_view text, size_t maxBytes) {
  if (text.size() > maxBytes || isNestedTooDeep(text)) return Json(Json::value_t::discarded);
  Json json = Json::parse(text, nullptr, false);
  return json.is_object() ? json : Json(Json::value_t::discarded);
}

/// Whether the record belongs to a tuning that has not decided yet.
bool isUnfinished(const std::string& record) {
  const Json json = parseObject(record, kMaxRecordBytes);
  return json.is_object() && json.value("arm", Json()) == "";
}

bool isRecord(const Json& json) { return json.is_object() && json.contains("arm") && json["arm"].is_string(); }

bool isTime(int64_t seconds) { return seconds >= 0 && seconds <= kLatestTime; }

std::string columnText(sqlite3_stmt* statement, int column) {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement, column));
  return text ? std::string(text, static_cast<size_t>(sqlite3_column_bytes(statement, column))) : std::string();
}

void bindText(sqlite3_stmt* statement, int index, std::string_view text) {
  sqlite3_bind_text(statement, index, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
}

DatabaseRow readRow(sqlite3_stmt* statement) {
  DatabaseRow row;
  row.key = columnText(statement, 0);
  row.record = columnText(statement, 1);
  row.created = sqlite3_column_int64(statement, 3);
  row.used = sqlite3_column_int64(statement, 4);
  row.uses = sqlite3_column_int64(statement, 5);
  row.isIntact = sqlite3_column_int64(statement, 2) == decisionChecksum(row.key, row.record) && isTime(row.created) &&
                 isTime(row.used) && row.uses >= 0 && row.uses <= kMaxUses && canonicalKey(row.key).hasValue() &&
                 isRecord(parseObject(row.record, kMaxRecordBytes));
  return row;
}

constexpr int64_t kUnreadable = -1;

/// Returns: kUnreadable if the file is locked or not a database.
int64_t readPragma(sqlite3* connection, const char* sql) {
  int64_t value = kUnreadable;
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(connection, sql, -1, &statement, nullptr) == SQLITE_OK &&
      sqlite3_step(statement) == SQLITE_ROW) {
    value = sqlite3_column_int64(statement, 0);
  }
  sqlite3_finalize(statement);
  return value;
}

/// Whether another process holds the lock, so that a later try may succeed.
bool isBusy(int code) { return (code & 0xff) == SQLITE_BUSY || (code & 0xff) == SQLITE_LOCKED; }

}  // namespace

uint32_t decisionChecksum(std::string_view key, std::string_view record) {
  uint32_t crc = 0xffffffffu;
  const auto update = [&crc](unsigned char byte) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
  };
  for (const char c : key) update(static_cast<unsigned char>(c));
  update(0);
  for (const char c : record) update(static_cast<unsigned char>(c));
  return ~crc;
}

StatusOr<std::string> canonicalKey(std::string_view key) {
  const Json json = parseObject(key, kMaxKeyBytes);
  if (!json.is_object()) return invalidArgument("tuning database: the key is not a JSON object of at most 64 KiB");
  for (const char* member : kRequiredMembers) {
    if (!json.contains(member))
      return invalidArgument(std::string("tuning database: the key lacks \"") + member + "\"");
  }
  return dump(json);
}

TuningDatabase::TuningDatabase(std::string path) : path_(std::move(path)) { open(); }
TuningDatabase::~TuningDatabase() = default;
TuningDatabase::TuningDatabase(TuningDatabase&&) noexcept = default;
TuningDatabase& TuningDatabase::operator=(TuningDatabase&&) noexcept = default;

void TuningDatabase::Closer::operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }

void TuningDatabase::ignore(const std::string& reason) {
  if (warning_.empty()) warning_ = "tuning database " + path_ + " is ignored: " + reason;
  connection_.reset();
}

void TuningDatabase::open() {
  if (const Status trusted = prepareTrustedFile(path_); !trusted.isOk()) return ignore(trusted.message());
  sqlite3* connection = nullptr;
  const int code = sqlite3_open_v2(path_.c_str(), &connection, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW, nullptr);
  connection_.reset(connection);
  if (code != SQLITE_OK) return ignore(sqlite3_errstr(code));
  sqlite3_busy_timeout(connection, kBusyTimeoutMs);
  // Triggers and views of a tampered schema must not run code.
  sqlite3_db_config(connection, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);

  if (readPragma(connection, "SELECT count(*) FROM sqlite_master") == kUnreadable)
    return ignore(sqlite3_errmsg(connection));
  const bool isNew = readPragma(connection, "SELECT count(*) FROM sqlite_master") == 0 &&
                     readPragma(connection, "PRAGMA application_id") == 0;
  if (isNew) {
    const std::string create = formatText("BEGIN IMMEDIATE;{};PRAGMA application_id={};PRAGMA user_version={};COMMIT",
                                          kCreateTables, kDatabaseApplicationId, kDatabaseVersion);
    if (!execute(create.c_str())) return;
  }
  if (readPragma(connection, "PRAGMA application_id") != kDatabaseApplicationId) {
    return ignore("it was not written by agspeed");
  }
  const int64_t version = readPragma(connection, "PRAGMA user_version");
  if (version != kDatabaseVersion) {
    return ignore(formatText("it has format version {}, this agspeed reads version {}", version, kDatabaseVersion));
  }
  std::string check;
  query("PRAGMA quick_check(1)", [](sqlite3_stmt*) {}, [&](sqlite3_stmt* row) { check = columnText(row, 0); });
  if (isUsable() && check != "ok") ignore("it is corrupted (" + check + ")");
}

/// Runs statements without results. A lock that cannot be obtained is ignored; any other failure gives the file up.
bool TuningDatabase::execute(const char* sql) {
  if (!isUsable()) return false;
  const int code = sqlite3_exec(connection_.get(), sql, nullptr, nullptr, nullptr);
  if (code == SQLITE_OK) return true;
  const std::string reason = sqlite3_errmsg(connection_.get());
  sqlite3_exec(connection_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
  if (!isBusy(code)) ignore(reason);
  return false;
}

template <typename Bind, typename OnRow>
bool TuningDatabase::query(const char* sql, Bind bind, OnRow onRow) {
  if (!isUsable()) return false;
  sqlite3_stmt* statement = nullptr;
  int code = sqlite3_prepare_v2(connection_.get(), sql, -1, &statement, nullptr);
  if (code == SQLITE_OK) {
    bind(statement);
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) onRow(statement);
  }
  const std::string reason = sqlite3_errmsg(connection_.get());
  sqlite3_finalize(statement);
  if (code == SQLITE_DONE) return true;
  if (!isBusy(code)) ignore(reason);
  return false;
}

std::optional<DatabaseRow> TuningDatabase::rowOf(const std::string& canonicalKey) {
  std::optional<DatabaseRow> found;
  query(
      "SELECT key, record, crc32, created, used, uses FROM decisions WHERE key = ?1",
      [&](sqlite3_stmt* statement) { bindText(statement, 1, canonicalKey); },
      [&](sqlite3_stmt* statement) { found = readRow(statement); });
  return found;
}

StatusOr<std::optional<std::string>> TuningDatabase::find(std::string_view key, int64_t now) {
  AG_ASSIGN_OR_RETURN(const std::string canonical, canonicalKey(key));
  std::optional<DatabaseRow> found = rowOf(canonical);
  if (!found) return std::optional<std::string>();
  if (!found->isIntact) {
    if (warning_.empty()) warning_ = "tuning database " + path_ + ": a damaged row was ignored";
    return std::optional<std::string>();
  }
  // At most one write per hour, because a hit must not cost a disk flush.
  query(
      "UPDATE decisions SET used = ?2, uses = uses + 1 WHERE key = ?1 AND used <= ?2 - 3600",
      [&](sqlite3_stmt* statement) {
        bindText(statement, 1, canonical);
        sqlite3_bind_int64(statement, 2, now);
      },
      [](sqlite3_stmt*) {});
  return std::optional<std::string>(std::move(found->record));
}

Status TuningDatabase::store(std::string_view key, std::string_view record, int64_t now) {
  AG_ASSIGN_OR_RETURN(std::string canonical, canonicalKey(key));
  const Json json = parseObject(record, kMaxRecordBytes);
  if (!isRecord(json)) {
    return invalidArgument(
        "tuning database: the record is not a JSON object of at most 1 MiB with a text member \"arm\"");
  }
  put({std::move(canonical), dump(json), now, now, 0, true});
  return {};
}

StatusOr<bool> TuningDatabase::storeUnfinished(std::string_view key, std::string_view record, int64_t now) {
  AG_ASSIGN_OR_RETURN(std::string canonical, canonicalKey(key));
  const std::string text(record);
  if (!isUnfinished(text)) {
    return invalidArgument(
        "tuning database: the unfinished record is not a JSON object of at most 1 MiB with an empty member \"arm\"");
  }
  if (!isUsable()) return false;
  sqlite3_busy_timeout(connection_.get(), kUnfinishedTimeoutMs);
  bool isStored = false;
  if (execute("BEGIN IMMEDIATE")) {
    const std::optional<DatabaseRow> present = rowOf(canonical);
    const bool isFree = !present || !present->isIntact || isUnfinished(present->record);
    isStored = isFree && put({std::move(canonical), dump(parseObject(text, kMaxRecordBytes)), now, now, 0, true});
    isStored = execute(isStored ? "COMMIT" : "ROLLBACK") && isStored;
  }
  if (isUsable()) sqlite3_busy_timeout(connection_.get(), kBusyTimeoutMs);
  return isStored;
}

bool TuningDatabase::put(const DatabaseRow& row) {
  return query(
      "INSERT OR REPLACE INTO decisions(key, record, crc32, created, used, uses) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
      [&](sqlite3_stmt* statement) {
        bindText(statement, 1, row.key);
        bindText(statement, 2, row.record);
        sqlite3_bind_int64(statement, 3, decisionChecksum(row.key, row.record));
        sqlite3_bind_int64(statement, 4, row.created);
        sqlite3_bind_int64(statement, 5, row.used);
        sqlite3_bind_int64(statement, 6, row.uses);
      },
      [](sqlite3_stmt*) {});
}

std::vector<DatabaseRow> TuningDatabase::list() {
  std::vector<DatabaseRow> rows;
  query(
      "SELECT key, record, crc32, created, used, uses FROM decisions ORDER BY created, key", [](sqlite3_stmt*) {},
      [&](sqlite3_stmt* statement) { rows.push_back(readRow(statement)); });
  return rows;
}

int64_t TuningDatabase::prune(int64_t usedBefore, int64_t maxRows) {
  std::vector<DatabaseRow> rows = list();
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.used > b.used; });
  int64_t numKept = 0;
  int64_t numDeleted = 0;
  for (const DatabaseRow& row : rows) {
    if (row.isIntact && row.used >= usedBefore && numKept < maxRows) {
      ++numKept;
      continue;
    }
    const auto bind = [&](sqlite3_stmt* statement) { bindText(statement, 1, row.key); };
    numDeleted += query("DELETE FROM decisions WHERE key = ?1", bind, [](sqlite3_stmt*) {}) ? 1 : 0;
  }
  if (numDeleted > 0) execute("VACUUM");
  return numDeleted;
}

std::string TuningDatabase::exportText() {
  std::string text = dump({{"format", kExportFormat}, {"version", kDatabaseVersion}}) + "\n";
  for (const DatabaseRow& row : list()) {
    if (!row.isIntact || isUnfinished(row.record)) continue;
    const Json line = {{"key", Json::parse(row.key)},
                       {"record", Json::parse(row.record)},
                       {"created", row.created},
                       {"used", row.used},
                       {"uses", row.uses}};
    text += dump(line) + "\n";
  }
  return text;
}

StatusOr<int64_t> TuningDatabase::importText(std::string_view text, int64_t now) {
  std::vector<DatabaseRow> rows;
  int64_t numLines = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::string where = formatText("tuning database import, line {}: ", ++numLines);
    const Json json = parseObject(line, kMaxKeyBytes + kMaxRecordBytes + 1024);
    if (!json.is_object()) return invalidArgument(where + "not a JSON object");
    if (numLines == 1) {
      if (json.value("format", Json()) == kExportFormat && json.value("version", Json()) == kDatabaseVersion) continue;
      return invalidArgument("{}not the header of an export of version {}", where, kDatabaseVersion);
    }
    const StatusOr<std::string> key = canonicalKey(dump(json.value("key", Json())));
    if (!key.hasValue()) return key.status().withContext(where);
    const Json record = json.value("record", Json());
    if (!isRecord(record)) return invalidArgument(where + "the record names no arm");
    const Json created = json.value("created", Json(now));
    if (!created.is_number_integer() || created < 0 || created > kLatestTime) {
      return invalidArgument(where + "\"created\" is not a time in seconds since 1970");
    }
    // A time in the future would block every later decision.
    rows.push_back({*key, dump(record), std::min(created.get<int64_t>(), now), now, 0, true});
  }
  if (numLines == 0) return invalidArgument("tuning database import: the text is empty");
  int64_t numTaken = 0;
  const std::vector<DatabaseRow> present = list();
  for (const DatabaseRow& row : rows) {
    const bool isOlder = std::any_of(present.begin(), present.end(), [&](const DatabaseRow& other) {
      return other.isIntact && other.key == row.key && other.created >= row.created;
    });
    if (isOlder || !put(row)) continue;
    ++numTaken;
  }
  return numTaken;
}

}  // namespace agspeed::runtime::tune
