// kvscout: which blocks of a long KV cache are worth reading.
//
// Every function takes one struct of named arguments (the names of the Python package) and
// `Options`, writes into tensors that the caller owns, and throws `kvscout::Error` before anything
// is written if the question is not a legal one. docs/operations.md says what every operation
// means, to the byte.
//
//   kvscout::msa_proxy_score_fp4({.q_fp4 = q, .k_fp4 = k, ..., .output = scores});
//
// Calls on CUDA tensors run on `Options::stream` and neither allocate nor synchronise; calls on
// host tensors return when the result is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvscout/problem.h"
#include "kvscout/tensor.h"

namespace kvscout {

// What a call may throw. The message is one line: operation, argument, what came, what was
// expected.
class KVSCOUT_API Error : public std::runtime_error {
 public:
  enum Code { invalid_argument, unsupported, device_failure };
  Error(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Code code() const { return code_; }

 private:
  Code code_;
};

struct Options {
  // A name of backends(); else the environment's KVSCOUT_BACKEND; else the first that fits.
  const char* backend = nullptr;
  void* stream = nullptr;  // cudaStream_t
  // On the device of the data, any content, 256-byte aligned; *_workspace() says how much.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  // Host threads, at most; 0: as many as the surrounding task arena allows.
  int threads = 0;
  // Checked mode (also by KVSCOUT_CHECK=1): validates the values of lengths, page ids and slots,
  // too; synchronises.
  bool check = false;
};

// ---- nvfp4_quantize ----------------------------------------------------------------------------
// a: (..., K) f32/f16/bf16, K a multiple of 16, leading dimensions flattened to M rows (one row
// stride). codes: u8 (..., K/2), dense. scales: u8 of scale_layout::bytes(layout, M, K/16) bytes,
// dense, any shape; padding is written as 0. a_global_sf: the *forward* scale, 2688 / amax.
struct QuantizeArgs {
  Tensor a{};
  GlobalScale a_global_sf{};
  SfLayout layout = SfLayout::layout_128x4;
  Tensor codes{}, scales{};
};
KVSCOUT_API void nvfp4_quantize(const QuantizeArgs&, const Options& = {});

// ---- msa_proxy_score_fp4 -----------------------------------------------------------------------
struct ScoreFp4Args {
  Tensor q_fp4{};    // (Tq, Hq, 64) codes; or (Tq, Hq, 128) bf16/f16 without q_scale
  Tensor k_fp4{};    // flat (Tk, Hkv, 64) or paged (P, Hkv, 128, 64)
  Tensor q_scale{};  // e4m3 bytes, 128x4, dense; row token*Hq + head
  Tensor k_scale{};  // likewise; row token*Hkv + head; paged also (P, Hkv*1024) with a page stride
  GlobalScale q_global_scale{}, k_global_scale{};  // inverse scales
  Tensor cu_seqlens_q{};                           // i32 (B+1)
  Tensor cu_seqlens_k{};                           // i32 (B+1), flat keys
  Tensor page_table{};                             // i32 (B, width): selects paged keys
  Tensor seqused_k{};                              // i32 (B), paged keys
  bool causal = true;
  std::int64_t max_seqlen_q = -1;      // bound on the queries of a request; always given
  std::int64_t max_k_tiles = -1;       // columns of the result; always given
  Tensor output{};                     // f32 (H', max_k_tiles, Tq), any strides without overlap
  Reduce reduce_heads = Reduce::none;  // H' = Hq, 1 or Hkv
  bool has_q_offset = false;           // q_offset as a number ...
  std::int64_t q_offset = 0;
  Tensor q_offsets{};                                  // ... or as i32 (B)
  std::int64_t kv_block_start = 0, kv_block_step = 1;  // column n is block start + n*step
};
KVSCOUT_API void msa_proxy_score_fp4(const ScoreFp4Args&, const Options& = {});
KVSCOUT_API std::size_t msa_proxy_score_fp4_workspace(const ScoreFp4Args&, const Options& = {});

// ---- msa_proxy_score ---------------------------------------------------------------------------
// q (Tq, Hq, 128), k flat (Tk, Hkv, 128) or paged (P, Hkv, 128, 128): bf16 or f16 with k of the
// same type or e4m3; e4m3 with e4m3. The rest as above.
struct ScoreArgs {
  Tensor q{}, k{};
  Tensor cu_seqlens_q{}, cu_seqlens_k{}, page_table{}, seqused_k{};
  bool causal = true;
  std::int64_t max_seqlen_q = -1, max_k_tiles = -1;
  Tensor output{};
  Reduce reduce_heads = Reduce::none;
  bool has_q_offset = false;
  std::int64_t q_offset = 0;
  Tensor q_offsets{};
  std::int64_t kv_block_start = 0, kv_block_step = 1;
};
KVSCOUT_API void msa_proxy_score(const ScoreArgs&, const Options& = {});
KVSCOUT_API std::size_t msa_proxy_score_workspace(const ScoreArgs&, const Options& = {});

// ---- msa_topk_select ---------------------------------------------------------------------------
// max_score f32 (H, P, Tq), any strides. output i32 (Tq, H, topk), any strides without overlap: the
// ids of min(topk, n) blocks in ascending order, then -1.
struct SelectArgs {
  Tensor max_score{};
  int topk = 16;
  bool has_num_valid_pages = false;  // n of every token as a number (clamped to [0, P]) ...
  std::int64_t num_valid_pages = 0;
  Tensor num_valid_pages_tensor{};  // ... or as i32 (Tq); neither: P
  Tensor output{};
  int force_begin_blocks = 0, force_end_blocks = 0;
  bool skip_masked = false;  // blocks that rank at or below -inf are not chosen unless forced
};
KVSCOUT_API void msa_topk_select(const SelectArgs&, const Options& = {});

// ---- msa_index_select_fp4 ----------------------------------------------------------------------
// Score and selection without a score buffer: to the bit msa_topk_select(msa_proxy_score_fp4(...))
// with n = min(ceil(limit/128), max_k_tiles) for each token. score.output is not used. With a block
// subset, ids are column numbers. output i32 (Tq, H', topk); scores, if given, f32 of that shape,
// -inf beside -1.
struct IndexArgs {
  ScoreFp4Args score{};
  int topk = 16;
  int force_begin_blocks = 0, force_end_blocks = 0;
  Tensor output{}, scores{};
};
KVSCOUT_API void msa_index_select_fp4(const IndexArgs&, const Options& = {});
KVSCOUT_API std::size_t msa_index_select_fp4_workspace(const IndexArgs&, const Options& = {});

// ---- msa_index_append_fp4 ----------------------------------------------------------------------
// k (T, Hkv, 128) f32/f16/bf16; cache codes (P, Hkv, 128, 64) and 128x4 scales as in
// msa_proxy_score_fp4; slot_mapping i64 (N), N <= T, slot = page*128 + position. Negative slots and
// slots beyond the pool are skipped. global_scale: the *forward* scale.
struct AppendArgs {
  Tensor k{};
  Tensor k_cache_fp4{}, k_cache_scale{};
  Tensor slot_mapping{};
  GlobalScale global_scale{};
};
KVSCOUT_API void msa_index_append_fp4(const AppendArgs&, const Options& = {});

// ---- what is there -----------------------------------------------------------------------------
struct BackendInfo {
  std::string name;
  std::string built_for;              // what its code was compiled for
  bool available = false;             // runs on this machine
  std::string status;                 // the device, or why it does not run here; and who has run it
  Device::Type device = Device::cpu;  // the memory that its calls work on
};
KVSCOUT_API std::vector<BackendInfo> backends();
KVSCOUT_API const char* version();

// What a call would do: back end, schedule, tiles, splits, workspace. One line for a log.
KVSCOUT_API std::string explain(const ScoreFp4Args&, const Options& = {});

// Host bounds of a call from lengths in host memory: what max_seqlen_q and max_k_tiles must be at
// least.
struct Bounds {
  std::int64_t max_seqlen_q = 0, max_k_tiles = 0;
};
KVSCOUT_API Bounds bounds_of(const ScoreFp4Args&);
KVSCOUT_API Bounds bounds_of(const ScoreArgs&);

}  // namespace kvscout
