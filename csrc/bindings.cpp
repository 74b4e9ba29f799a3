// The extension minivllm._cpu. Tensors come as addresses, checked in minivllm/kernels/cpu; types as numbers of DType.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>

#include "isa.h"
#include "plan.h"
#include "recorded.h"
#include "shared_group.h"
#include "team.h"
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace nb = nanobind;
using namespace minivllm;

namespace {

using Address = uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// Ops that may be recorded. The first argument of each counts rows (tokens, sequences).

void norm(long rows, int dtype, Address x, Address residual, Address weight, Address bias, Address out, long cols, float eps,
          long heads, long x_stride, bool centred, bool plus_one, bool by_head) {
  kernels().norm[dtype]({at<void>(x), at<void>(residual), at<void>(weight), at<void>(bias), at<void>(out), rows, cols, eps,
                         heads, x_stride, centred, plus_one, by_head});
}

void rotary(long tokens, int dtype, Address q, Address k, long q_stride, long k_stride, Address positions, Address cos_sin,
            long heads, long kv_heads, long head_dim, long rotary_dim, bool interleaved) {
  kernels().rotary[dtype]({at<void>(q), at<void>(k), q_stride, k_stride, at<int64_t>(positions), at<float>(cos_sin), tokens,
                           heads, kv_heads, head_dim, rotary_dim, interleaved});
}

void gate(long rows, int dtype, Address x, Address out, long cols, int kind) {
  kernels().gate[dtype]({at<void>(x), at<void>(out), rows, cols, static_cast<Gate>(kind), 0});
}

void act(long rows, int dtype, Address x, Address out, long cols, int kind) {
  kernels().act[dtype]({at<void>(x), at<void>(out), rows, cols, static_cast<Act>(kind)});
}

void scale_add(long rows, int dtype, Address x, Address y, long cols, float factor) {
  kernels().scale_add[dtype]({at<void>(x), at<void>(y), rows, cols, factor});
}

void kv_write(long tokens, int dtype, int cache_dtype, Address k, Address v, long k_stride, long v_stride, Address kv,
              Address slots, long blocks, long kv_heads, long block_size, long head_dim) {
  kernels().kv_write[dtype][cache_dtype]({at<void>(k), at<void>(v), k_stride, v_stride, at<void>(kv), at<int64_t>(slots),
                                          tokens, blocks, kv_heads, block_size, head_dim});
}

void attend(AttentionArgs& args, int cache_dtype) {
  const AttentionPlan plan = plan_attention(args, num_threads());
  std::vector<float> partials(plan.partial_rows * (args.head_dim + 2));
  args.token_order = plan.token_order.data();
  args.items = plan.items.data();
  args.num_items = static_cast<long>(plan.items.size());
  args.merges = plan.merges.data();
  args.num_merges = static_cast<long>(plan.merges.size());
  args.partials = partials.data();
  kernels().attention[cache_dtype](args);
}

void attention(long seqs, int dtype, int cache_dtype, Address q, Address kv, Address out, Address block_tables,
               Address query_start, Address context_lens, long q_stride, long table_stride, long blocks, long heads,
               long kv_heads, long block_size, long head_dim, float scale, float soft_cap, long window, Address sinks,
               Address alibi_slopes, bool keys_are_values) {
  AttentionArgs args{};
  args.dtype = static_cast<DType>(dtype), args.q = at<void>(q), args.kv = at<void>(kv), args.out = at<void>(out);
  args.block_tables = at<int32_t>(block_tables), args.query_start = at<int32_t>(query_start);
  args.context_lens = at<int32_t>(context_lens), args.q_stride = q_stride, args.table_stride = table_stride;
  args.seqs = seqs, args.blocks = blocks, args.heads = heads, args.kv_heads = kv_heads, args.block_size = block_size;
  args.head_dim = head_dim, args.scale = scale, args.soft_cap = soft_cap, args.window = window;
  args.sinks = at<float>(sinks), args.alibi_slopes = at<float>(alibi_slopes), args.keys_are_values = keys_are_values;
  attend(args, cache_dtype);
}

// Every token of a text sees the whole text.
void whole_attention(long seqs, int dtype, Address q, Address k, Address v, Address out, Address query_start, long q_stride,
                     long k_stride, long v_stride, long heads, long kv_heads, long head_dim, float scale, long window) {
  AttentionArgs args{};
  args.dtype = static_cast<DType>(dtype), args.q = at<void>(q), args.out = at<void>(out);
  args.query_start = at<int32_t>(query_start), args.q_stride = q_stride, args.seqs = seqs, args.heads = heads;
  args.kv_heads = kv_heads, args.head_dim = head_dim, args.scale = scale, args.window = window;
  args.keys = at<void>(k), args.values = at<void>(v), args.key_stride = k_stride, args.value_stride = v_stride;
  attend(args, dtype);
}

void gemm(long m, int dtype, Address x, Address w, Address bias, Address y, long n, long k, long ldx) {
  kernels().gemm[dtype]({at<void>(x), at<void>(w), at<void>(bias), at<void>(y), m, n, k, ldx});
}

const int64_t* checked_indices(Address indices, long count, long n) {
  const int64_t* found = at<int64_t>(indices);
  for (long i = 0; i < count; i++) {
    if (found[i] < 0 || found[i] >= n) {
      throw std::out_of_range("index " + std::to_string(found[i]) + " does not fit a weight of " + std::to_string(n) + " rows");
    }
  }
  return found;
}

void gemm_rows(long count, int dtype, Address packed, Address indices, Address out, long n, long k) {
  kernels().gemm_rows[dtype](at<void>(packed), checked_indices(indices, count, n), at<void>(out), count, k);
}

// The same of a table that is not packed, of any type.
void copy_rows(long count, Address table, Address indices, Address out, long n, long row_bytes) {
  const int64_t* wanted = checked_indices(indices, count, n);
  for (long i = 0; i < count; i++) memcpy(at<char>(out) + i * row_bytes, at<char>(table) + wanted[i] * row_bytes, row_bytes);
}

// int64 indices counted from `begin`; 0 for those outside [begin, end).
void indices_in(long count, Address indices, Address out, long begin, long end) {
  const int64_t* given = at<int64_t>(indices);
  for (long i = 0; i < count; i++) at<int64_t>(out)[i] = given[i] >= begin && given[i] < end ? given[i] - begin : 0;
}

// Zeros in the rows whose index is outside [begin, end).
void clear_outside(long rows, Address x, Address indices, long row_bytes, long begin, long end) {
  const int64_t* given = at<int64_t>(indices);
  for (long i = 0; i < rows; i++) {
    if (given[i] < begin || given[i] >= end) memset(at<char>(x) + i * row_bytes, 0, row_bytes);
  }
}

void all_reduce(long rows, Address group, int dtype, Address x, long cols) {
  at<SharedGroup>(group)->all_reduce(dtype, at<void>(x), rows * cols);
}

void all_gather(long rows, Address group, Address x, long x_stride, Address out, long columns, Address ranges, long item_bytes) {
  at<SharedGroup>(group)->all_gather(at<void>(x), x_stride, at<void>(out), rows, columns, at<int64_t>(ranges), item_bytes);
}

void gemm_int8(long m, int dtype, Address x, Address w, Address scales, Address bias, Address y, long n, long k, long ldx) {
  kernels().gemm_int8({static_cast<DType>(dtype), at<void>(x), at<uint8_t>(w), at<float>(scales), at<void>(bias), at<void>(y),
                       m, n, k, ldx});
}

void gemm_int8_rows(long count, int dtype, Address packed, Address scales, Address indices, Address out, long n, long k) {
  kernels().gemm_int8_rows(static_cast<DType>(dtype), at<uint8_t>(packed), at<float>(scales),
                           checked_indices(indices, count, n), at<void>(out), count, k);
}

void gemm_grouped(long m, int bits, int group, Address x, Address w, Address bias, Address y, long n, long k, long ldx,
                  Address table, Address order) {
  kernels().gemm_grouped({bits, group, at<uint16_t>(x), at<uint8_t>(w), at<uint16_t>(bias), at<uint16_t>(y), m, n, k, ldx,
                          at<float>(table), at<int64_t>(order)});
}

void mix(long tokens, int dtype, Address x, Address out, Address experts, Address shares, long top_k, long num_experts,
         Address gate_up, int gate_up_bits, int gate_up_group, Address gate_up_table, Address gate_up_bias, Address down,
         int down_bits, int down_group, Address down_table, Address down_bias, long hidden, long size, float limit) {
  const ExpertLinear first = {at<int64_t>(gate_up), gate_up_bits, gate_up_group, at<float>(gate_up_table), at<void>(gate_up_bias),
                              2 * size, hidden};
  const ExpertLinear second = {at<int64_t>(down), down_bits, down_group, at<float>(down_table), at<void>(down_bias), hidden, size};
  kernels().mix[dtype]({static_cast<DType>(dtype), at<void>(x), at<void>(out), at<int64_t>(experts), at<float>(shares), tokens, top_k,
                        num_experts, first, second, limit});
}

void gemm_grouped_rows(long count, int bits, int group, Address packed, Address table, Address indices, Address out, long n,
                       long k) {
  kernels().gemm_grouped_rows(bits, group, at<uint8_t>(packed), at<float>(table), checked_indices(indices, count, n),
                              at<uint16_t>(out), count, k);
}

// The others.

void choose(int dtype, Address logits, Address rows, long num_rows, long stride, long columns, Address params, Address seeds,
            Address masks, Address tokens) {
  kernels().choose[dtype]({{at<void>(logits), at<int64_t>(rows), num_rows, stride, columns, at<uint64_t>(masks)},
                           at<double>(params), at<int64_t>(seeds), at<int64_t>(tokens)});
}

void logprobs(int dtype, Address logits, Address rows, long num_rows, long stride, long columns, Address tokens, long count,
              Address values, Address ids, Address ranks) {
  kernels().logprobs[dtype]({{at<void>(logits), at<int64_t>(rows), num_rows, stride, columns}, at<int64_t>(tokens), count,
                             at<float>(values), at<int64_t>(ids), at<int64_t>(ranks)});
}

void gemm_pack(int dtype, Address w, Address packed, long n, long k) {
  kernels().gemm_pack[dtype](at<void>(w), at<void>(packed), n, k);
}

void gemm_int8_pack(int dtype, Address w, Address packed, Address scales, long n, long k) {
  kernels().gemm_int8_pack(static_cast<DType>(dtype), at<void>(w), at<uint8_t>(packed), at<float>(scales), n, k);
}

void gemm_grouped_pack(int bits, int group, Address values, Address scales, Address least, Address packed, long n, long k) {
  kernels().gemm_grouped_pack({bits, group, at<uint8_t>(values), at<uint16_t>(scales), at<uint16_t>(least), n, k},
                              at<uint8_t>(packed));
}

// Large pages for weights: fewer address translations while streaming them. Only a hint.
void advise_huge_pages(Address address, size_t bytes) {
#if defined(__linux__)
  constexpr Address kHuge = 2u << 20;
  const Address begin = (address + kHuge - 1) / kHuge * kHuge, end = (address + bytes) / kHuge * kHuge;
  if (end > begin) madvise(at<void>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)address, (void)bytes;
#endif
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.attr("PANEL") = kPanel;
  m.attr("DEPTH") = kDepth;
  m.attr("DEPTH_INT8") = kDepthInt8;
  m.def("isa", [] { return std::string(kernels().name); }, "Instruction set whose kernels run.");
  m.def("available_isas", &available_isas, "Instruction sets of this CPU, best first.");
  m.def("set_isa", [](const std::string& name) {
    if (!set_isa(name)) throw nb::value_error(("instruction set not available on this CPU: " + name).c_str());
  });
  m.def("set_threads", [](int threads) {
    if (threads < 1) throw nb::value_error("at least one thread is needed");
    set_threads(threads);
  }, "Threads of all kernels, the caller included; not while another thread is in a kernel.");
  m.def("num_threads", &num_threads);
  m.def("choose", &choose, nb::call_guard<nb::gil_scoped_release>());
  m.def("logprobs", &logprobs, nb::call_guard<nb::gil_scoped_release>());
  m.def("gemm_pack", &gemm_pack, nb::call_guard<nb::gil_scoped_release>());
  m.def("gemm_int8_pack", &gemm_int8_pack, nb::call_guard<nb::gil_scoped_release>());
  m.def("gemm_grouped_pack", &gemm_grouped_pack, nb::call_guard<nb::gil_scoped_release>());
  define_op(m, "norm", &norm);
  define_op(m, "rotary", &rotary);
  define_op(m, "gate", &gate);
  define_op(m, "act", &act);
  define_op(m, "scale_add", &scale_add);
  define_op(m, "kv_write", &kv_write);
  define_op(m, "attention", &attention);
  define_op(m, "whole_attention", &whole_attention);
  define_op(m, "gemm", &gemm);
  define_op(m, "gemm_rows", &gemm_rows);
  define_op(m, "copy_rows", &copy_rows);
  define_op(m, "indices_in", &indices_in);
  define_op(m, "clear_outside", &clear_outside);
  define_op(m, "all_reduce", &all_reduce);
  define_op(m, "all_gather", &all_gather);
  define_op(m, "gemm_int8", &gemm_int8);
  define_op(m, "gemm_int8_rows", &gemm_int8_rows);
  define_op(m, "mix", &mix);
  define_op(m, "gemm_grouped", &gemm_grouped);
  define_op(m, "gemm_grouped_rows", &gemm_grouped_rows);
  m.def("advise_huge_pages", &advise_huge_pages);

  m.attr("MAX_RANKS") = kMaxRanks;
  nb::class_<SharedGroup>(m, "SharedGroup", "Ranks on this machine that exchange arrays; waits until all are there.")
      .def(nb::init<const std::string&, int, int>(), nb::arg("path"), nb::arg("rank"), nb::arg("size"),
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("address", [](const SharedGroup& group) { return reinterpret_cast<Address>(&group); }, "For ops.")
      .def("leave", &SharedGroup::leave, "Others that wait for this rank fail.");
  nb::class_<Variable>(m, "Variable", "In place of a number of a recorded call: factor times a value that each run gives.")
      .def(nb::init<int, int64_t>(), nb::arg("index"), nb::arg("factor") = 1);
  nb::class_<Program>(m, "Program", "Recorded calls of ops, replayed in one call.")
      .def(nb::init<>())
      .def("add", [](Program& program, const std::string& op, const nb::tuple& arguments) {
        program.add(op, recorders().at(op)(arguments));
      })
      .def("run", &Program::run, nb::call_guard<nb::gil_scoped_release>(), "Values of all variables, by index.")
      .def("run_timed", &Program::run_timed, nb::call_guard<nb::gil_scoped_release>(), "As run; seconds of each call.")
      .def_prop_ro("names", &Program::names, "Ops of the calls.");
}
