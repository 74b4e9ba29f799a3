// Arguments of every CPU kernel and the table of one instruction set's kernels. Included by all variants: plain data only,
// no inline code, so that nothing compiled for a newer CPU can be merged into the others by the linker.
#pragma once
#include <cstdint>

namespace minivllm {

// i8 and f8 are types of the KV cache only.
enum class DType : int { f32 = 0, bf16 = 1, f16 = 2, i8 = 3, f8 = 4 };

// A token's rows follow each other; `out` is dense, and so is `x` if there is a residual.
struct NormArgs {
  const void* x;       // [rows, cols], tokens x_stride elements apart
  void* residual;      // [rows, cols] or null; x is added to it first, and the sum is normalised
  const void* weight;  // [cols], by_head [heads, cols], or null
  const void* bias;    // [cols] or null
  void* out;           // [rows, cols]
  long rows, cols;
  float eps;
  long heads, x_stride;  // rows of a token
  bool centred;          // LayerNorm, else RMSNorm
  bool plus_one;         // the factor is weight + 1
  bool by_head;
};

struct RotaryArgs {
  void *q, *k;  // [tokens, heads, head_dim] and [tokens, kv_heads, head_dim], rotated in place
  long q_stride, k_stride;  // elements between tokens
  const int64_t* positions;  // [tokens]
  const float* cos_sin;      // [max_position, rotary_dim]: cosines, then sines
  long tokens, heads, kv_heads, head_dim, rotary_dim;
  bool interleaved;
};

enum class Gate : int { silu = 0, gelu_tanh = 1, gelu_erf = 2, limited = 3 };

struct GateArgs {
  const void* x;  // [rows, 2 * cols]: gate, then up
  void* out;      // [rows, cols]
  long rows, cols;
  Gate gate;
  float limit;  // of `limited`
};

enum class Act : int { silu = 0, gelu_tanh = 1, gelu_erf = 2, relu = 3, relu2 = 4 };

struct ActArgs {
  const void* x;  // [rows, cols]
  void* out;      // alike
  long rows, cols;
  Act act;
};

// x = x * factor + y
struct ScaleAddArgs {
  void* x;        // [rows, cols]
  const void* y;  // alike or null
  long rows, cols;
  float factor;
};

constexpr int kMaxRanks = 64;

struct SumArgs {
  const void* const* parts;  // [num_parts]: [count] each
  int num_parts;             // at most kMaxRanks
  void* out;                 // [count]; may be one of the parts
  long count;
};

struct KvWriteArgs {
  const void *k, *v;         // [tokens, kv_heads, head_dim]
  long k_stride, v_stride;   // elements between tokens
  void* kv;                  // [2, blocks, kv_heads, block_size, head_dim]; int8: see PagesOf in simd.h
  const int64_t* slots;      // [tokens], negative = skip
  long tokens, blocks, kv_heads, block_size, head_dim;
};

// A piece of attention for one thread: some query tokens, KV heads from kv_head on, keys [key_begin, key_end) of one sequence.
// The tokens are that sequence's, or the newest ones of several that begin with these keys and see all of them.
// Its rows are KV heads x tokens x heads of a KV head.
struct AttentionItem {
  int seq, kv_head, num_kv_heads;
  int token_begin, token_end;  // places in token_order
  int position;                // of the first token; of several sequences: any after the keys
  int key_begin, key_end;
  int partial;    // -1: writes the output itself; else the first row of the partial results that it fills
  int head_step;  // rows of partial results between KV heads
};

// Partial results of some tokens whose keys were divided into `splits`, to be merged into `out`.
struct AttentionMerge {
  int token_begin, token_end, kv_head, num_kv_heads;
  int partial, splits;
  int split_step;  // rows of partial results between splits
};

struct AttentionArgs {
  DType dtype;     // of q and out
  const void* q;  // [tokens, heads, head_dim], tokens q_stride elements apart
  const void* kv;  // as in KvWriteArgs
  bool keys_are_values;  // kv is [1, blocks, kv_heads, block_size, head_dim] then
  void* out;       // [tokens, heads, head_dim]
  const int32_t* block_tables;  // [seqs, blocks of a sequence], rows table_stride apart
  const int32_t* query_start;   // [seqs + 1]
  const int32_t* context_lens;  // [seqs]
  long q_stride, table_stride, seqs, blocks, heads, kv_heads, block_size, head_dim;
  float scale, soft_cap;  // soft_cap 0: none
  long window;            // 0: unlimited
  const float* sinks;         // [heads] or null: a score more, of no key
  const float* alibi_slopes;  // [heads] or null: times its distance, taken off a key's score
  // Of an encoder, else null: in the place of kv, block_tables and context_lens, rows like those of q. Every token sees its whole
  // text then, or the window both ways.
  const void *keys, *values;
  long key_stride, value_stride;
  // Filled by plan_attention.
  const int* token_order;  // [tokens]: rows of q and out
  const AttentionItem* items;
  long num_items;
  const AttentionMerge* merges;
  long num_merges;
  float* partials;  // per row: head_dim accumulators, maximum, sum
};

// y = x @ w.T + bias, all of one type; gemm.cpp shows the layout of w.
struct GemmArgs {
  const void* x;     // [m, k], rows ldx apart
  const void* w;     // packed, k padded with zeros to a multiple of 32, n too
  const void* bias;  // [n] or null
  void* y;           // [m, n]
  long m, n, k, ldx;
};

// y = x @ w.T + bias with int8 weights; gemm_int8.cpp shows the layout of w.
struct GemmInt8Args {
  DType dtype;          // of x, bias and y
  const void* x;        // [m, k], rows ldx apart
  const uint8_t* w;     // packed, k padded to a multiple of 64, n to one of 32
  const float* scales;  // of the columns of y, padded like w
  const void* bias;     // [n] or null
  void* y;              // [m, n]
  long m, n, k, ldx;
};

// y = x @ w.T + bias in bf16 with weights of `bits` bits in groups along k; gemm_grouped.cpp shows the layout of w.
struct GemmGroupedArgs {
  int bits;              // 4 or 8
  int group;             // values that share a scale: 16 or 32
  const uint16_t* x;     // [m, k], rows ldx apart; k is a multiple of 32
  const uint8_t* w;      // packed, n padded to a multiple of 32
  const uint16_t* bias;  // [n] or null
  uint16_t* y;           // [m, n]
  long m, n, k, ldx;
  const float* table;    // [2^bits]: what values stand for; null: themselves
  const int64_t* order;  // [k]: the columns of x as w has them; null: as they are
};

// One linear layer of all experts: their packed weights, alike in shape and kind.
struct ExpertLinear {
  const int64_t* weights;  // [num_experts]: addresses
  int bits, group;         // as in GemmGroupedArgs; bits 0: as in GemmArgs
  const float* table;
  const void* bias;  // [num_experts, n] or null
  long n, k;
};

// out = sum over a token's experts of share * down(silu(gate(x)) * up(x)).
struct MixArgs {
  DType dtype;             // of x, out and biases
  const void* x;           // [tokens, hidden]
  void* out;               // [tokens, hidden]
  const int64_t* experts;  // [tokens, top_k]; those outside [0, num_experts) are not here
  const float* shares;     // [tokens, top_k]
  long tokens, top_k, num_experts;
  ExpertLinear gate_up, down;  // gate and then up: [2 * size, hidden]; [hidden, size]
  float limit;                 // 0: none; else the gate is `limited`
};

// A weight of `bits` bits before it is packed: value * scale + least, with a scale and a least for every `group` values of a row.
struct GroupedWeight {
  int bits, group;
  const uint8_t* values;   // [n, k] bytes, or [n, k / 2]: of each group, the low halves of its bytes and then the high ones
  const uint16_t* scales;  // fp16 [n, k / group]
  const uint16_t* least;   // fp16 [n, k / group]
  long n, k;
};

// Rows of logits to look at: `rows` of a matrix whose rows are `stride` elements apart, or its first `num_rows` (null).
struct LogitRows {
  const void* logits;
  const int64_t* rows;
  long num_rows, stride, columns;
  const uint64_t* masks = nullptr;  // [num_rows, columns / 64 rounded up], or null: a column whose bit is 0 reads as -inf
};

struct ChooseArgs {
  LogitRows in;
  const double* params;  // [num_rows, 4]: temperature (0: greedy), top_k (0: off), top_p, min_p
  const int64_t* seeds;  // [num_rows, 2]: seed, position
  int64_t* tokens;       // [num_rows]; kBroken or kNothingLeft instead of a column
};

struct LogprobArgs {
  LogitRows in;
  const int64_t* tokens;  // [num_rows]; a column of the matrix, also one beyond `columns`
  long count;             // alternatives, at most `columns`
  float* values;          // [num_rows, 1 + count]: of the token, then of the alternatives in falling order
  int64_t* ids;           // [num_rows, 1 + count]
  int64_t* ranks;         // [num_rows]: of the token, from 1
};

constexpr int64_t kBroken = -1;       // NaN or +inf among the logits
constexpr int64_t kNothingLeft = -2;  // all are -inf

struct KernelTable {
  const char* name;
  // One entry per DType of the activations.
  void (*norm[3])(const NormArgs&);
  void (*rotary[3])(const RotaryArgs&);
  void (*gate[3])(const GateArgs&);
  void (*act[3])(const ActArgs&);
  void (*scale_add[3])(const ScaleAddArgs&);
  void (*sum_parts[3])(const SumArgs&);
  void (*kv_write[3][5])(const KvWriteArgs&);    // [activations][cache]
  void (*attention[5])(const AttentionArgs&);    // [cache]
  void (*choose[3])(const ChooseArgs&);          // [logits]
  void (*logprobs[3])(const LogprobArgs&);       // [logits]
  void (*mix[3])(const MixArgs&);
  void (*gemm[3])(const GemmArgs&);
  void (*gemm_pack[3])(const void* w, void* packed, long n, long k);
  void (*gemm_rows[3])(const void* packed, const int64_t* indices, void* out, long count, long k);
  void (*gemm_int8)(const GemmInt8Args&);
  void (*gemm_int8_pack)(DType, const void* w, uint8_t* packed, float* scales, long n, long k);
  void (*gemm_int8_rows)(DType, const uint8_t* packed, const float* scales, const int64_t* indices, void* out, long count, long k);
  void (*gemm_grouped)(const GemmGroupedArgs&);
  void (*gemm_grouped_pack)(const GroupedWeight&, uint8_t* packed);
  void (*gemm_grouped_rows)(int bits, int group, const uint8_t* packed, const float* table, const int64_t* indices, uint16_t* out,
                            long count, long k);
};

constexpr long kPanel = 32;  // columns of a packed panel
constexpr long kDepth = 32;      // k is padded to a multiple of this,
constexpr long kDepthInt8 = 64;  // and for int8 weights of this

}  // namespace minivllm
