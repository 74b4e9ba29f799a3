#include "isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace minivllm {

#define MINIVLLM_VARIANT(name) \
  namespace name {             \
  extern const KernelTable table; \
  }
MINIVLLM_VARIANT(portable)
#if defined(__x86_64__)
MINIVLLM_VARIANT(avx2)
MINIVLLM_VARIANT(avx512)
MINIVLLM_VARIANT(avx512_bf16)
namespace amx {
void gemm(const GemmArgs&);
void gemm_int8(const GemmInt8Args&);
void gemm_grouped(const GemmGroupedArgs&);
bool tile_attention(const AttentionArgs&, DType cache);  // bf16 or i8; false: shape or type not covered
}  // namespace amx
#endif

namespace {

#if defined(__x86_64__)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

// Tiles need the CPU and, on Linux, a permission for the whole process, since their state makes every signal frame larger.
bool has_amx() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr unsigned kNeeded = 1u << 22 | 1u << 24 | 1u << 25;  // amx_bf16, amx_tile, amx_int8
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kNeeded) != kNeeded) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

const KernelTable* amx_table() {
  static const KernelTable table = [] {
    KernelTable mixed = avx512_bf16::table;
    mixed.name = "amx";
    mixed.gemm[static_cast<int>(DType::bf16)] = amx::gemm;
    mixed.gemm_int8 = amx::gemm_int8;
    mixed.gemm_grouped = amx::gemm_grouped;
    mixed.attention[static_cast<int>(DType::bf16)] = [](const AttentionArgs& args) {
      if (!amx::tile_attention(args, DType::bf16)) avx512_bf16::table.attention[static_cast<int>(DType::bf16)](args);
    };
    mixed.attention[static_cast<int>(DType::i8)] = [](const AttentionArgs& args) {
      if (!amx::tile_attention(args, DType::i8)) avx512_bf16::table.attention[static_cast<int>(DType::i8)](args);
    };
    return mixed;
  }();
  return &table;
}
#endif

std::vector<const KernelTable*> find_tables() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (has_avx512()) {
    if (__builtin_cpu_supports("avx512bf16")) {
      if (has_amx()) tables.push_back(amx_table());
      tables.push_back(&avx512_bf16::table);
    }
    tables.push_back(&avx512::table);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(&avx2::table);
#endif
  tables.push_back(&portable::table);
  return tables;
}

const std::vector<const KernelTable*>& tables() {
  static const std::vector<const KernelTable*> found = find_tables();
  return found;
}

const KernelTable*& current() {
  static const KernelTable* table = tables().front();
  return table;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const KernelTable* table : tables()) names.push_back(table->name);
  return names;
}

const KernelTable& kernels() { return *current(); }

bool set_isa(const std::string& name) {
  for (const KernelTable* table : tables()) {
    if (name == table->name) {
      current() = table;
      return true;
    }
  }
  return false;
}

}  // namespace minivllm
