// Processes of one machine that add and join arrays through memory that they share.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

namespace minivllm {

// All ranks make the same calls in the same order. Each has two slots: it writes one, the others read it, and by the time it
// writes that one again they have all written the next, hence read this one.
//
//   [arrived: a cache line for each rank][slot 0 of rank 0][slot 1 of rank 0][slot 0 of rank 1] ...
//
// Each rank holds a lock on one byte of the file, which the system releases however the process ends: who finds it free while
// waiting for that rank throws std::runtime_error.
class SharedGroup {
 public:
  // Waits until all ranks are there; the file at `path` is gone from then on.
  SharedGroup(const std::string& path, int rank, int size);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  // x = sum over the ranks, in fp32 and in their order, so that all get the same bits.
  void all_reduce(int dtype, void* x, long count);
  // Columns [ranges[2r], ranges[2r + 1]) of out [rows, columns] = x of rank r; x has rows x_stride elements apart.
  void all_gather(const void* x, long x_stride, void* out, long rows, long columns, const int64_t* ranges, long item_bytes);
  // The others find this rank gone; no calls may follow.
  void leave();

 private:
  struct alignas(64) Line {
    std::atomic<uint64_t> value;
  };

  void unmap();
  char* slot(int rank) const;
  void publish();       // what is in this rank's slot
  void await(int rank);  // until its slot has what it published in this round

  const int rank_, size_;
  int file_ = -1;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  uint64_t round_ = 0;
};

}  // namespace minivllm
