#include "csrc/distributed/roster.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

namespace neuron::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

const std::string kPrefix = "neuron/", kRoster = kPrefix + "roster", kValid = kPrefix + "valid", kSeen = kPrefix + "seen/";

uint64_t draw() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

/// What the store holds now, without waiting for it.
std::optional<std::string> look_up(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  return store.get_to_str(key);
}

std::string text(const Roster& roster) {
  std::string lines = roster.number;
  for (const auto& facts : roster.ranks) lines += "\n" + facts.text();
  return lines;
}

Roster parse(const std::string& lines) {
  Roster roster;
  std::istringstream in(lines);
  std::getline(in, roster.number);
  for (std::string line; std::getline(in, line);) roster.ranks.push_back(ProcessFacts::parse(line));
  return roster;
}

/// Short at first, since the others are usually about to come; longer later, since all ranks ask one server.
void pause(int turn) { std::this_thread::sleep_for(milliseconds(std::min(1 + turn / 8, 50))); }

/// Rank 0's part of one turn: a roster once it is valid.
class Writer {
 public:
  Writer(c10d::Store& store, int size) : store_(store), size_(size) {}

  std::optional<Roster> turn() {
    std::vector<std::string> facts;
    for (int rank = 0; rank < size_; ++rank) {
      auto found = look_up(store_, kPrefix + std::to_string(rank));
      if (!found) return std::nullopt;
      facts.push_back(std::move(*found));
    }
    if (facts != written_) write(std::move(facts));
    for (int rank = 1; rank < size_; ++rank)
      if (look_up(store_, kSeen + std::to_string(rank)) != roster_.number) return std::nullopt;
    store_.set(kValid, roster_.number);
    return roster_;
  }

  std::string missing() {
    std::string ranks;
    for (int rank = 1; rank < size_; ++rank)
      if (roster_.number.empty() ? !store_.check({kPrefix + std::to_string(rank)})
                                 : look_up(store_, kSeen + std::to_string(rank)) != roster_.number)
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    return "rank(s) " + ranks + " did not join";
  }

 private:
  void write(std::vector<std::string> facts) {
    roster_ = {std::to_string(draw()), {}};
    for (const auto& line : facts) roster_.ranks.push_back(ProcessFacts::parse(line));
    store_.set(kRoster, text(roster_));
    written_ = std::move(facts);
  }

  c10d::Store& store_;
  const int size_;
  std::vector<std::string> written_;
  Roster roster_;
};

/// The part of any other rank.
class Reader {
 public:
  Reader(c10d::Store& store, int rank, int size, uint64_t number) : store_(store), rank_(rank), size_(size), number_(number) {}

  std::optional<Roster> turn() {
    const auto lines = look_up(store_, kRoster);
    if (!lines) return std::nullopt;
    Roster roster = parse(*lines);
    if (static_cast<int>(roster.ranks.size()) != size_ || roster.ranks[rank_].number != number_) return std::nullopt;  // an earlier group's
    if (seen_ != roster.number) store_.set(kSeen + std::to_string(rank_), seen_ = roster.number);
    if (look_up(store_, kValid) != roster.number) return std::nullopt;
    return roster;
  }

  std::string missing() {
    return seen_.empty() ? "rank 0, or a rank that it waits for, did not join" : "a rank that rank 0 waits for did not join";
  }

 private:
  c10d::Store& store_;
  const int rank_, size_;
  const uint64_t number_;
  std::string seen_;
};

template <class Part>
Roster take_part(Part part, int rank, int size, milliseconds timeout) {
  const auto start = Clock::now();
  for (int turn = 0;; ++turn) {
    if (auto roster = part.turn()) return std::move(*roster);
    TORCH_CHECK_WITH(DistBackendError, Clock::now() - start < timeout, "A process group of ", size, " ranks could not be made: rank ", rank,
                     " has waited ", timeout.count() / 1000.0, " s, and ", part.missing(),
                     ". Every rank of a group must make it (init_process_group(timeout=) sets how long the others wait).");
    pause(turn);
  }
}

}  // namespace

Roster agree_on_roster(c10d::Store& store, int rank, int size, ProcessFacts mine, milliseconds timeout) {
  mine.number = draw();
  store.set(kPrefix + std::to_string(rank), mine.text());
  if (rank == 0) return take_part(Writer(store, size), rank, size, timeout);
  return take_part(Reader(store, rank, size, mine.number), rank, size, timeout);
}

}  // namespace neuron::distributed
