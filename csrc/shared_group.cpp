#include "shared_group.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "isa.h"
#include "pause.h"

// Locks of an open file, of which two threads of a process may have one each; elsewhere those of the process.
#if !defined(F_OFD_SETLK)
#define F_OFD_SETLK F_SETLK
#define F_OFD_GETLK F_GETLK
#endif

namespace minivllm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSlotBytes = 256 << 10;
constexpr auto kSpin = std::chrono::microseconds(100);   // a wait begins with this,
constexpr auto kYield = std::chrono::milliseconds(2);    // goes on giving way to others until here, and then sleeps
constexpr auto kNap = std::chrono::microseconds(50);
constexpr auto kLook = std::chrono::milliseconds(20);    // between two looks whether a rank is still there
constexpr auto kJoin = std::chrono::minutes(5);          // for ranks that have not come yet

std::runtime_error failed(const std::string& what) { return std::runtime_error(what + ": " + strerror(errno)); }

struct flock byte_lock(int rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

bool is_there(int file, int rank) {
  struct flock lock = byte_lock(rank);
  return fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace

SharedGroup::SharedGroup(const std::string& path, int rank, int size) : rank_(rank), size_(size) {
  bytes_ = size * (sizeof(Line) + 2 * kSlotBytes);
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file_ < 0) throw failed("cannot share memory at " + path);
  struct flock lock = byte_lock(rank);
  try {
    if (ftruncate(file_, static_cast<off_t>(bytes_)) != 0) throw failed("cannot make " + path + " large enough");
    if (fcntl(file_, F_OFD_SETLK, &lock) != 0) throw failed("cannot lock " + path);
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory_ == MAP_FAILED) throw failed("cannot map " + path);
    publish();
    for (int other = 0; other < size_; other++) await(other);
    round_++;
  } catch (...) {
    unmap();
    throw;
  }
  unlink(path.c_str());
}

SharedGroup::~SharedGroup() { unmap(); }

void SharedGroup::leave() {
  if (file_ < 0) return;
  struct flock lock = byte_lock(rank_);
  lock.l_type = F_UNLCK;
  fcntl(file_, F_OFD_SETLK, &lock);  // closing would not do while the file is mapped
  close(file_);
  file_ = -1;
}

void SharedGroup::unmap() {
  leave();
  if (memory_ != nullptr && memory_ != MAP_FAILED) munmap(memory_, bytes_);
  memory_ = nullptr;
}

char* SharedGroup::slot(int rank) const {
  return static_cast<char*>(memory_) + size_ * sizeof(Line) + (2 * rank + (round_ & 1)) * kSlotBytes;
}

void SharedGroup::publish() {
  static_cast<Line*>(memory_)[rank_].value.store(round_ + 1, std::memory_order_release);
}

void SharedGroup::await(int rank) {
  const std::atomic<uint64_t>& arrived = static_cast<Line*>(memory_)[rank].value;
  const auto here = [&] { return arrived.load(std::memory_order_acquire) > round_; };
  for (int i = 0; i < 1000; i++) {
    if (here()) return;
    pause();
  }
  const auto begin = Clock::now();
  for (auto looked = begin; !here();) {
    const auto now = Clock::now();
    if (now - begin < kSpin) {
      pause();
    } else if (now - begin < kYield) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
    if (now - looked < kLook) continue;
    looked = now;
    if (arrived.load() == 0 ? now - begin > kJoin : !is_there(file_, rank) && !here()) {
      throw std::runtime_error("rank " + std::to_string(rank) + " of " + std::to_string(size_) + " is gone");
    }
  }
}

void SharedGroup::all_reduce(int dtype, void* x, long count) {
  if (file_ < 0) throw std::runtime_error("this rank has left its group");
  const long item = dtype == static_cast<int>(DType::f32) ? 4 : 2, most = static_cast<long>(kSlotBytes) / item;
  const void* parts[kMaxRanks];
  for (long begin = 0; begin < count; begin += most) {
    const long n = std::min(most, count - begin);
    char* own = static_cast<char*>(x) + begin * item;
    memcpy(slot(rank_), own, n * item);
    publish();
    for (int rank = 0; rank < size_; rank++) {
      if (rank != rank_) await(rank);
      parts[rank] = rank == rank_ ? own : slot(rank);
    }
    kernels().sum_parts[dtype]({parts, size_, own, n});
    round_++;
  }
}

void SharedGroup::all_gather(const void* x, long x_stride, void* out, long rows, long columns, const int64_t* ranges,
                             long item_bytes) {
  if (file_ < 0) throw std::runtime_error("this rank has left its group");
  long widest = 1;
  for (int rank = 0; rank < size_; rank++) widest = std::max<long>(widest, ranges[2 * rank + 1] - ranges[2 * rank]);
  const long most = static_cast<long>(kSlotBytes) / item_bytes;
  const long step = std::min(widest, most), rows_at_once = std::max(1L, most / step);
  for (long row = 0; row < rows; row += rows_at_once) {
    const long height = std::min(rows_at_once, rows - row);
    for (long column = 0; column < widest; column += step) {
      // Each rank's part of these columns, which may end before those of others.
      const auto width = [&](int rank) {
        return std::clamp<long>(ranges[2 * rank + 1] - ranges[2 * rank] - column, 0, step) * item_bytes;
      };
      for (long i = 0; i < height; i++) {
        memcpy(slot(rank_) + i * width(rank_), static_cast<const char*>(x) + ((row + i) * x_stride + column) * item_bytes,
               width(rank_));
      }
      publish();
      for (int rank = 0; rank < size_; rank++) {
        if (rank != rank_) await(rank);
        for (long i = 0; i < height; i++) {
          memcpy(static_cast<char*>(out) + ((row + i) * columns + ranges[2 * rank] + column) * item_bytes,
                 slot(rank) + i * width(rank), width(rank));
        }
      }
      round_++;
    }
  }
}

}  // namespace minivllm
