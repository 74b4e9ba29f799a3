// A token for each row of logits, and logprobs, both by blocks of 64 columns. One pass over the logits gives each block's
// greatest value and, where needed, its sum of weights; the rest looks only at the few blocks that matter: no sort of the
// vocabulary. Nothing in a row depends on other rows or on the number of threads. The rules: kernels/reference/sampling.py.
#include <cmath>

#include "ops.h"
#include "parallel.h"
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr long kBlock = 64, kVectors = kBlock / kLanes;
constexpr long kStretch = 64;  // blocks that a thread takes at a time
constexpr float kInf = __builtin_inff(), kNan = __builtin_nanf("");

struct Block {
  vf v[kVectors];
};

constexpr uint64_t kAllAllowed = ~(uint64_t)0;

// Columns whose bit is not in `allowed` become -inf.
MINIVLLM_INLINE void forbid(Block& block, uint64_t allowed) {
  vi lane_bits;
  for (long j = 0; j < kLanes; j++) lane_bits[j] = 1 << j;
  for (long i = 0; i < kVectors; i++) {
    const vi bits = (vi{} + (int32_t)(allowed >> i * kLanes & ((1 << kLanes) - 1))) & lane_bits;
    block.v[i] = bits != 0 ? block.v[i] : splat(-kInf);
  }
}

// Columns beyond the row read as -inf.
template <class T>
MINIVLLM_INLINE Block load_block(const T* x, long count) {
  Block block;
  if (count >= kBlock) {
    MINIVLLM_UNROLL for (long i = 0; i < kVectors; i++) block.v[i] = load(x + i * kLanes);
    return block;
  }
  float values[kBlock];
  for (long i = 0; i < kBlock; i++) values[i] = -kInf;
  for (long i = 0; i < count; i += kLanes) {
    const long n = min_of(count - i, kLanes);
    store_n(values + i, load_n(x + i, n), n);
  }
  MINIVLLM_UNROLL for (long i = 0; i < kVectors; i++) block.v[i] = load(values + i * kLanes);
  return block;
}

// NaN if one is in the block.
MINIVLLM_INLINE float greatest(const Block& block) {
  vf top = block.v[0], sum = block.v[0];  // a NaN gets lost in the maximum, but not in the sum
  MINIVLLM_UNROLL for (long i = 1; i < kVectors; i++) {
    top = vmax(block.v[i], top);
    sum += block.v[i];
  }
  return any(sum != sum) ? kNan : reduce_max(top);
}

// Sum of exp((x - top) / temperature) over the block's columns above `bound`.
MINIVLLM_INLINE float weigh(const Block& block, float top, float inverse_temperature, float bound = -kInf) {
  vf sum = {};
  MINIVLLM_UNROLL for (long i = 0; i < kVectors; i++) {
    const vf weights = vexp((block.v[i] - top) * inverse_temperature);
    sum += block.v[i] > bound ? weights : vf{};
  }
  return reduce_add(sum);
}

MINIVLLM_INLINE long count_above(const Block& block, float bound) {
  vf count = {};
  MINIVLLM_UNROLL for (long i = 0; i < kVectors; i++) count += block.v[i] > bound ? splat(1.0f) : vf{};
  return (long)reduce_add(count);
}

struct Candidate {
  float value;
  int32_t column;
};

// The least of a heap is its first.
static void sift(Candidate* heap, long n, long at) {
  const Candidate moved = heap[at];
  for (long child = 2 * at + 1; child < n; at = child, child = 2 * at + 1) {
    if (child + 1 < n && heap[child + 1].value < heap[child].value) child++;
    if (moved.value <= heap[child].value) break;
    heap[at] = heap[child];
  }
  heap[at] = moved;
}

// items[0, k) become the k greatest, as a heap.
static void keep_best(Candidate* items, long n, long k) {
  for (long i = k / 2 - 1; i >= 0; i--) sift(items, k, i);
  for (long i = k; i < n; i++) {
    if (items[i].value > items[0].value) {
      items[0] = items[i];
      sift(items, k, 0);
    }
  }
}

// Sorts by falling value, the order of equal ones stays; `spare` has the same room. What comes back is one of the two.
static Candidate* sort_falling(Candidate* items, Candidate* spare, long n) {
  const auto digit = [](Candidate one, int shift) {
    const float value = one.value + 0.0f;  // -0 is 0
    int32_t bits;
    memcpy(&bits, &value, 4);
    return ((uint32_t)bits ^ (bits < 0 ? 0u : 0x7fffffffu)) >> shift & 255;
  };
  for (int shift = 0; shift < 32; shift += 8) {
    long ends[256] = {};
    for (long i = 0; i < n; i++) ends[digit(items[i], shift)]++;
    if (ends[digit(items[0], shift)] == n) continue;  // so bf16 takes two rounds
    for (int d = 1; d < 256; d++) ends[d] += ends[d - 1];
    for (long i = n - 1; i >= 0; i--) spare[--ends[digit(items[i], shift)]] = items[i];
    Candidate* sorted = spare;
    spare = items;
    items = sorted;
  }
  return items;
}

template <class T>
struct Row {
  const T* x;
  long columns, blocks;
  const uint64_t* masks;  // [blocks], or null
  const float* maxima;    // [blocks]
  float best;            // NaN or infinite: nothing to choose from
  long best_block;

  Row(const LogitRows& in, long row, const float* maxima_of_rows)
      : x((const T*)in.logits + (in.rows ? in.rows[row] : row) * in.stride),
        columns(in.columns),
        blocks((in.columns + kBlock - 1) / kBlock),
        masks(in.masks ? in.masks + row * blocks : nullptr),
        maxima(maxima_of_rows + row * blocks),
        best(-kInf),
        best_block(0) {
    for (long b = 0; b < blocks; b++) {
      if (!(maxima[b] <= best)) best = maxima[b], best_block = b;
      if (best != best) break;
    }
  }

  Block block(long b) const {
    Block block = load_block(x + b * kBlock, columns - b * kBlock);
    if (masks) forbid(block, masks[b]);
    return block;
  }

  float at(long column) const { return load_n(x + column, 1)[0]; }

  long first_in_block(long b, float value) const {
    const Block values = block(b);
    long i = 0;
    while (((const float*)&values)[i] != value) i++;
    return b * kBlock + i;
  }

  // The k <= columns greatest in falling order, the lower of equal ones first, somewhere in `found`. They lie in the k blocks
  // with the greatest maxima: any other block has k values at least as great outside it.
  Candidate* top(long k, Candidate* found) const {
    float bound = -kInf;
    if (k < blocks) {
      for (long b = 0; b < blocks; b++) found[b] = {maxima[b], (int32_t)b};
      keep_best(found, blocks, k);
      bound = found[0].value;
    }
    long n = 0;
    for (long b = 0; b < blocks; b++) {
      if (maxima[b] < bound) continue;
      Block values = block(b);
      const long count = min_of(kBlock, columns - b * kBlock);
      for (long i = 0; i < count; i++) {
        const float value = ((const float*)&values)[i];
        if (value >= bound) found[n++] = {value, (int32_t)(b * kBlock + i)};
      }
    }
    return sort_falling(found, found + n, n);
  }

  // masses[b] = weight of the block's columns above the bound, of which the row's best would have 1. The sum comes back.
  double masses_above(float bound, float inverse_temperature, float* masses) const {
    double total = 0;
    for (long b = 0; b < blocks; b++) {
      masses[b] = maxima[b] > bound ? weigh(block(b), best, inverse_temperature, bound) : 0.0f;
      total += masses[b];
    }
    return total;
  }

  // The same without a bound, from sums that are relative to each block's own greatest.
  double masses_of_sums(float inverse_temperature, float* masses) const {
    double total = 0;
    for (long b = 0; b < blocks; b += kLanes) {
      const long n = min_of(kLanes, blocks - b);
      const vf scale = vexp((load_n(maxima + b, n) - best) * inverse_temperature);
      store_n(masses + b, load_n(masses + b, n) * scale, n);
      for (long i = 0; i < n; i++) total += masses[b + i];
    }
    return total;
  }

  // The column at which the cumulative weight passes `target`, by masses as filled above with the same bound.
  long draw(double target, float bound, float inverse_temperature, const float* masses) const {
    long chosen = 0;
    double before_chosen = 0, cumulative = 0;
    for (long b = 0; b < blocks && cumulative <= target; b++) {
      if (masses[b] > 0) chosen = b, before_chosen = cumulative;
      cumulative += masses[b];
    }
    Block values = block(chosen), weights;
    for (long i = 0; i < kVectors; i++) {
      const vf weight = vexp((values.v[i] - best) * inverse_temperature);
      weights.v[i] = values.v[i] > bound ? weight : vf{};
    }
    long column = 0;
    cumulative = before_chosen;
    for (long i = 0; i < kBlock && cumulative <= target; i++) {
      const float weight = ((const float*)&weights)[i];
      if (weight > 0) column = i;  // so rounding cannot lead beyond the last one
      cumulative += weight;
    }
    return chosen * kBlock + column;
  }
};

// splitmix64 (Steele, Lea and Flood 2014).
static uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

struct Choice {
  double temperature, top_k, top_p, min_p;
  uint64_t seed, position;
  float inverse_temperature;

  Choice(const ChooseArgs& a, long row) {
    const double* p = a.params + row * 4;
    temperature = p[0], top_k = p[1] < (double)a.in.columns ? p[1] : 0, top_p = p[2], min_p = p[3];
    seed = (uint64_t)a.seeds[row * 2], position = (uint64_t)a.seeds[row * 2 + 1];
    inverse_temperature = temperature > 0 ? (float)(1 / temperature) : 0.0f;
  }

  bool needs_sums() const { return temperature > 0 && top_k == 0 && min_p == 0; }

  double uniform(uint64_t attempt) const {
    const uint64_t mixed = mix(mix(mix(seed) + position * 0x9E3779B97F4A7C15u) + attempt * 0xD1342543DE82EF95u);
    return (double)(mixed >> 12) * 0x1p-52;
  }
};

template <class T>
static long choose_of_top(const Row<T>& row, const Choice& choice, Candidate* room) {
  long n = (long)choice.top_k;
  Candidate* found = row.top(n, room);
  const float best = found[0].value;
  for (long i = 0; i < n; i += kLanes) {
    vf values = {};
    for (long j = 0; j < min_of(kLanes, n - i); j++) values[j] = found[i + j].value;
    const vf weights = vexp((values - best) * choice.inverse_temperature);
    for (long j = 0; j < min_of(kLanes, n - i); j++) found[i + j].value = weights[j];
  }
  while (n > 1 && found[n - 1].value < choice.min_p) n--;
  double total = 0, inside = found[0].value;
  for (long i = 0; i < n; i++) total += found[i].value;
  long kept = 1;
  while (kept < n && inside < choice.top_p * total) inside += found[kept++].value;
  const double target = choice.uniform(0) * inside;
  double cumulative = 0;
  long chosen = 0;
  for (long i = 0; i < kept && cumulative <= target; i++) {
    if (found[i].value > 0) chosen = i;
    cumulative += found[i].value;
  }
  return found[chosen].column;
}

template <class T>
static long choose_of_all(const Row<T>& row, const Choice& choice, float* masses) {
  const float scale = choice.inverse_temperature;
  float bound = -kInf;
  if (choice.min_p > 0) bound = nextafterf((float)(row.best + choice.temperature * std::log(choice.min_p)), -kInf);
  double total = choice.needs_sums() ? row.masses_of_sums(scale, masses) : row.masses_above(bound, scale, masses);
  const double limit = choice.top_p * total;
  for (uint64_t attempt = 0;; attempt++) {
    const long column = row.draw(choice.uniform(attempt) * total, bound, scale, masses);
    if (choice.top_p >= 1) return column;
    bound = row.at(column);
    total = row.masses_above(bound, scale, masses);
    if (total < limit) return column;
  }
}

// Fills [num_rows, blocks] each. inverse_temperature(row) is 0 where no sums are needed.
template <class T, class Inverse>
static void scan(const LogitRows& in, float* maxima, float* sums, const Inverse& inverse_temperature) {
  const long blocks = (in.columns + kBlock - 1) / kBlock, stretches = (blocks + kStretch - 1) / kStretch;
  parallel_for(in.num_rows * stretches, 16, [&](long begin, long end) {
    for (long item = begin; item < end; item++) {
      const long row = item / stretches, first = item % stretches * kStretch, last = min_of(first + kStretch, blocks);
      const T* x = (const T*)in.logits + (in.rows ? in.rows[row] : row) * in.stride;
      const float scale = inverse_temperature(row);
      for (long b = first; b < last; b++) {
        const uint64_t allowed = in.masks ? in.masks[row * blocks + b] : kAllAllowed;
        if (allowed == 0) {  // what a grammar allows lies in few blocks, often
          maxima[row * blocks + b] = -kInf;
          if (scale != 0) sums[row * blocks + b] = 0.0f;
          continue;
        }
        Block block = load_block(x + b * kBlock, in.columns - b * kBlock);
        if (allowed != kAllAllowed) forbid(block, allowed);
        const float top = greatest(block);
        maxima[row * blocks + b] = top;
        if (scale != 0) sums[row * blocks + b] = top == -kInf ? 0.0f : weigh(block, top, scale);
      }
    }
  });
}

// Room for the candidates of a thread and for sorting them, and for what scan() fills.
static Candidate* candidates(long columns) {
  static thread_local Scratch scratch;
  return (Candidate*)scratch.floats(4 * round_up(columns, kBlock));
}

static float* statistics(const LogitRows& in) {
  static thread_local Scratch scratch;
  return scratch.floats(2 * in.num_rows * ((in.columns + kBlock - 1) / kBlock));
}

template <class T>
void choose(const ChooseArgs& a) {
  const long blocks = (a.in.columns + kBlock - 1) / kBlock;
  float *maxima = statistics(a.in), *sums = maxima + a.in.num_rows * blocks;
  scan<T>(a.in, maxima, sums, [&](long row) {
    const Choice choice(a, row);
    return choice.needs_sums() ? choice.inverse_temperature : 0.0f;
  });
  parallel_for(a.in.num_rows, 4, [&](long begin, long end) {
    for (long i = begin; i < end; i++) {
      const Row<T> row(a.in, i, maxima);
      const Choice choice(a, i);
      if (!std::isfinite(row.best)) {
        a.tokens[i] = row.best == -kInf ? kNothingLeft : kBroken;
      } else if (choice.temperature == 0) {
        a.tokens[i] = row.first_in_block(row.best_block, row.best);
      } else if (choice.top_k > 0) {
        a.tokens[i] = choose_of_top(row, choice, candidates(a.in.columns));
      } else {
        a.tokens[i] = choose_of_all(row, choice, sums + i * blocks);
      }
    }
  });
}

template <class T>
void logprobs(const LogprobArgs& a) {
  const long blocks = (a.in.columns + kBlock - 1) / kBlock;
  float *maxima = statistics(a.in), *sums = maxima + a.in.num_rows * blocks;
  scan<T>(a.in, maxima, sums, [](long) { return 1.0f; });
  parallel_for(a.in.num_rows, 4, [&](long begin, long end) {
    for (long i = begin; i < end; i++) {
      const Row<T> row(a.in, i, maxima);
      const Candidate* found = nullptr;
      const bool usable = std::isfinite(row.best);
      const double log_sum = usable ? row.best + std::log(row.masses_of_sums(1.0f, sums + i * blocks)) : kNan;
      const float own = row.at(a.tokens[i]);
      long above = 0;
      for (long b = 0; usable && b < blocks; b++) {
        if (row.maxima[b] > own) above += count_above(row.block(b), own);
      }
      if (usable && a.count > 0) found = row.top(a.count, candidates(a.in.columns));
      const long at = i * (1 + a.count);
      a.ranks[i] = above + 1;
      a.ids[at] = a.tokens[i];
      a.values[at] = (float)(own - log_sum);
      for (long k = 0; k < a.count; k++) {
        const Candidate one = usable ? found[k] : Candidate{kNan, (int32_t)k};
        a.ids[at + 1 + k] = one.column;
        a.values[at + 1 + k] = (float)(one.value - log_sum);
      }
    }
  });
}

template void choose<float>(const ChooseArgs&);
template void choose<Bf16>(const ChooseArgs&);
template void choose<F16>(const ChooseArgs&);
template void logprobs<float>(const LogprobArgs&);
template void logprobs<Bf16>(const LogprobArgs&);
template void logprobs<F16>(const LogprobArgs&);

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
