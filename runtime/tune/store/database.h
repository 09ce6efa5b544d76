// SPDX-License-Identifier: Apache-2.0
// TuningDatabase: decisions of earlier processes, in one SQLite file. Format and trust rules: database_format.md.
//
// It never blocks training. A file is ignored if it is corrupted, not agspeed's, writable by other users, read-only, or
// of another version. warning() then returns one sentence, find() finds nothing, and store() does nothing.
// Thread-safety: none. Processes may share the file. Owns its connection; the destructor closes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace agspeed::runtime::tune {

struct DatabaseRow {
  std::string key;
  std::string record;
  int64_t created = 0;
  int64_t used = 0;
  int64_t uses = 0;
  bool isIntact = true;  ///< the checksum matches
};

class TuningDatabase {
 public:
  /// Opens or creates the file. Never fails: check isUsable() and warning().
  explicit TuningDatabase(std::string path);
  ~TuningDatabase();
  TuningDatabase(TuningDatabase&&) noexcept;
  TuningDatabase& operator=(TuningDatabase&&) noexcept;

  bool isUsable() const { return connection_ != nullptr; }
  /// Returns why the file, or a row of it, is ignored; empty if nothing is ignored. Keeps the first reason.
  const std::string& warning() const { return warning_; }
  const std::string& path() const { return path_; }

  /// Returns: the record (JSON text) stored under the key (JSON object text, any member order), or nothing. `now`
  /// (seconds since 1970) is recorded as the last use. Invalid argument: the key is not an object or lacks a required
  /// member.
  StatusOr<std::optional<std::string>> find(std::string_view key, int64_t now);
  /// Stores the record, or replaces an earlier one. Invalid argument: the key is wrong as for find(), or the record is
  /// not an object with a text member "arm".
  Status store(std::string_view key, std::string_view record, int64_t now);
  /// Stores or replaces the record of a tuning that has not decided yet; its "arm" is empty. It never replaces a
  /// decision, which another process may have stored, and it does not wait for a locked file.
  /// Returns: whether it is stored. Invalid argument: as above, or "arm" is not empty.
  StatusOr<bool> storeUnfinished(std::string_view key, std::string_view record, int64_t now);

  std::vector<DatabaseRow> list();
  /// Deletes broken rows, rows last used before `usedBefore`, and the least recently used rows beyond `maxRows`.
  /// Returns: how many rows it deleted.
  int64_t prune(int64_t usedBefore, int64_t maxRows);
  /// Returns all intact rows as JSON lines.
  std::string exportText();
  /// Merges exported text. Returns: how many rows were taken. Invalid argument names the first invalid line; nothing is
  /// taken then.
  StatusOr<int64_t> importText(std::string_view text, int64_t now);

 private:
  struct Closer {
    void operator()(sqlite3* connection) const;
  };
  void open();
  void ignore(const std::string& reason);
  std::optional<DatabaseRow> rowOf(const std::string& canonicalKey);
  bool put(const DatabaseRow& row);
  bool execute(const char* sql);
  template <typename Bind, typename OnRow>
  bool query(const char* sql, Bind bind, OnRow onRow);

  std::string path_;
  std::string warning_;
  std::unique_ptr<sqlite3, Closer> connection_;
};

/// Returns the canonical text of a key: sorted members, no spaces.
StatusOr<std::string> canonicalKey(std::string_view key);

}  // namespace agspeed::runtime::tune
