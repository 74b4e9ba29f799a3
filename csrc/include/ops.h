// The kernels of one variant, as collected by table.cpp.
#pragma once
#include "kernels.h"

namespace minivllm {
namespace MINIVLLM_ISA {

template <class T> void norm(const NormArgs&);
template <class T> void rotary(const RotaryArgs&);
template <class T> void gate(const GateArgs&);
template <class T> void act(const ActArgs&);
template <class T> void scale_add(const ScaleAddArgs&);
template <class T> void sum_parts(const SumArgs&);
template <class T, class Cache> void kv_write(const KvWriteArgs&);
template <class Cache> void attention(const AttentionArgs&);
template <class T> void choose(const ChooseArgs&);
template <class T> void logprobs(const LogprobArgs&);
template <class T> void mix(const MixArgs&);
void gemm(const GemmArgs&);  // bf16
template <class T> void gemm_float(const GemmArgs&);  // fp32, fp16
template <class T> void gemm_pack(const void* w, void* packed, long n, long k);
template <class T> void gemm_rows(const void* packed, const int64_t* indices, void* out, long count, long k);
void gemm_int8(const GemmInt8Args&);
void gemm_int8_pack(DType, const void* w, uint8_t* packed, float* scales, long n, long k);
void gemm_int8_rows(DType, const uint8_t* packed, const float* scales, const int64_t* indices, void* out, long count, long k);
void gemm_grouped(const GemmGroupedArgs&);
void gemm_grouped_pack(const GroupedWeight&, uint8_t* packed);
void gemm_grouped_rows(int bits, int group, const uint8_t* packed, const float* table, const int64_t* indices, uint16_t* out,
                       long count, long k);
extern const KernelTable table;

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
