#include "team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "pause.h"
#if defined(__linux__)
#include <pthread.h>
#endif

namespace minivllm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSpin = std::chrono::microseconds(50);  // an idle helper looks for work this long, then sleeps
constexpr auto kPatience = std::chrono::microseconds(20);  // the caller spins this long for the last chunks, then yields
// A wait for the last chunks that is longer than this, and than all the work before it, means that the system has put a helper
// aside for others. The caller then works alone for some time, since the next wait would cost more than the helper brings.
constexpr auto kStall = std::chrono::microseconds(300);
constexpr int kAloneFor = 4;  // times the wait

// Spins until done() or until `span` is over; false in the latter case.
template <class Done>
bool spin(std::chrono::microseconds span, const Done& done) {
  const auto end = Clock::now() + span;
  do {
    for (int i = 0; i < 32; i++) {
      if (done()) return true;
      pause();
    }
  } while (Clock::now() < end);
  return false;
}

void forget_team();

class Team {
 public:
  explicit Team(int threads) {
    for (int i = 1; i < threads; i++) helpers_.emplace_back([this] { help(); });
  }

  ~Team() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      wake_.notify_all();
    }
    for (std::thread& helper : helpers_) helper.join();
  }

  // False: busy with another caller's work, or short of time because of other processes.
  bool run(long chunks, void (*body)(const void*, long), const void* context) {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    const auto begin = Clock::now();
    if (begin < alone_until_) {
      busy_.store(false, std::memory_order_release);
      return false;
    }
    body_ = body;
    context_ = context;
    chunks_ = chunks;
    done_.store(0, std::memory_order_relaxed);
    job_.store(next_epoch() | static_cast<uint64_t>(chunks), std::memory_order_seq_cst);
    wake();
    long own = 0;
    take_chunks([&] { own++; });
    const auto finished = [&] { return done_.load(std::memory_order_acquire) == chunks - own; };
    const auto idle = Clock::now();
    while (!spin(kPatience, finished)) std::this_thread::yield();
    const auto waited = Clock::now() - idle;
    if (waited > kStall && waited > idle - begin) alone_until_ = idle + waited * (1 + kAloneFor);
    busy_.store(false, std::memory_order_release);
    return true;
  }

  void wake() {
    if (!sleeping_.exchange(false, std::memory_order_seq_cst)) return;
    std::lock_guard<std::mutex> lock(mutex_);
    calls_++;
    wake_.notify_all();
  }

 private:
  static constexpr uint64_t kLeft = 0xffffffffu;

  uint64_t next_epoch() { return static_cast<uint64_t>(++epoch_) << 32; }

  // The low half of job_ counts the unclaimed chunks, the high half tells one job from the next. Whoever has claimed a chunk
  // may read the other fields, since the job stays until that chunk is done.
  template <class Finished>
  void take_chunks(const Finished& finished) {
    uint64_t job = job_.load(std::memory_order_acquire);
    while ((job & kLeft) != 0) {
      if (!job_.compare_exchange_weak(job, job - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      body_(context_, chunks_ - static_cast<long>(job & kLeft));
      finished();
      job = job_.load(std::memory_order_acquire);
    }
  }

  void help() {
    uint64_t calls = 0;
    while (true) {
      // A job whose chunks are all claimed counts as none, even if it is new: its caller does not wait for us.
      if (spin(kSpin, [&] { return (job_.load(std::memory_order_acquire) & kLeft) != 0; })) {
        take_chunks([this] { done_.fetch_add(1, std::memory_order_release); });
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      calls = calls_;
      sleeping_.store(true, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return stop_ || calls_ != calls || (job_.load(std::memory_order_seq_cst) & kLeft) != 0; });
      if (stop_) return;
    }
  }

  alignas(128) std::atomic<uint64_t> job_{0};
  alignas(128) std::atomic<long> done_{0};  // chunks finished by helpers
  alignas(128) void (*body_)(const void*, long) = nullptr;
  const void* context_ = nullptr;
  long chunks_ = 0;
  uint32_t epoch_ = 0;
  Clock::time_point alone_until_{};
  std::atomic<bool> busy_{false};

  alignas(128) std::atomic<bool> sleeping_{false};
  std::mutex mutex_;  // of the sleep
  std::condition_variable wake_;
  uint64_t calls_ = 0;
  bool stop_ = false;
  std::vector<std::thread> helpers_;
};

// Never destroyed: helpers may still look at it while the process ends.
struct Shared {
  std::mutex mutex;  // of making and ending teams
  std::atomic<Team*> team{nullptr};
  std::atomic<int> threads{static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))};
};

Shared* make_shared_state() {
#if defined(__linux__)
  // A child of fork has none of the threads; what it inherits of their team, perhaps halfway through a job, is left alone.
  pthread_atfork(nullptr, nullptr, [] { forget_team(); });
#endif
  return new Shared;
}

Shared& shared() {
  static Shared* const state = make_shared_state();
  return *state;
}

void forget_team() {
  Shared& state = shared();
  new (&state.mutex) std::mutex;
  state.team = nullptr;
}

Team& team() {
  Shared& state = shared();
  Team* found = state.team.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  std::lock_guard<std::mutex> lock(state.mutex);
  if (state.team.load() == nullptr) state.team = new Team(state.threads);
  return *state.team.load();
}

}  // namespace

void set_threads(int threads) {
  Shared& state = shared();
  std::lock_guard<std::mutex> lock(state.mutex);
  if (threads == state.threads) return;
  delete state.team.exchange(nullptr);
  state.threads = threads;
}

int num_threads() { return shared().threads; }

void run_chunks(long chunks, void (*body)(const void* context, long chunk), const void* context) {
  if (chunks > 1 && num_threads() > 1 && team().run(chunks, body, context)) return;
  for (long chunk = 0; chunk < chunks; chunk++) body(context, chunk);
}

void wake_team() {
  if (num_threads() > 1) team().wake();
}

}  // namespace minivllm
