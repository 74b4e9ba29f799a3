// Collects the kernels of this variant.
#include "ops.h"
#include "simd.h"

#define MINIVLLM_TEXT(x) #x
#define MINIVLLM_NAME(x) MINIVLLM_TEXT(x)

namespace minivllm {
namespace MINIVLLM_ISA {

const KernelTable table = {
    MINIVLLM_NAME(MINIVLLM_ISA),
    {norm<float>, norm<Bf16>, norm<F16>},
    {rotary<float>, rotary<Bf16>, rotary<F16>},
    {gate<float>, gate<Bf16>, gate<F16>},
    {act<float>, act<Bf16>, act<F16>},
    {scale_add<float>, scale_add<Bf16>, scale_add<F16>},
    {sum_parts<float>, sum_parts<Bf16>, sum_parts<F16>},
    {{kv_write<float, float>, kv_write<float, Bf16>, kv_write<float, F16>, kv_write<float, I8>, kv_write<float, F8>},
     {kv_write<Bf16, float>, kv_write<Bf16, Bf16>, kv_write<Bf16, F16>, kv_write<Bf16, I8>, kv_write<Bf16, F8>},
     {kv_write<F16, float>, kv_write<F16, Bf16>, kv_write<F16, F16>, kv_write<F16, I8>, kv_write<F16, F8>}},
    {attention<float>, attention<Bf16>, attention<F16>, attention<I8>, attention<F8>},
    {choose<float>, choose<Bf16>, choose<F16>},
    {logprobs<float>, logprobs<Bf16>, logprobs<F16>},
    {mix<float>, mix<Bf16>, mix<F16>},
    {gemm_float<float>, gemm, gemm_float<F16>},
    {gemm_pack<float>, gemm_pack<Bf16>, gemm_pack<F16>},
    {gemm_rows<float>, gemm_rows<Bf16>, gemm_rows<F16>},
    gemm_int8,
    gemm_int8_pack,
    gemm_int8_rows,
    gemm_grouped,
    gemm_grouped_pack,
    gemm_grouped_rows,
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
