// The C functions: structs of any earlier version are completed with zeros, turned into the C++
// ones, and exceptions into codes and messages.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "kvscout/kvscout.h"
#include "kvscout/kvscout_c.h"
#include "kvscout/scale_layout.h"
#include "message.h"

namespace kvscout {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(Error::invalid_argument, what); }

// The caller's struct as this version knows it. Its size lies between the first version's and ours.
template <class T>
T completed(const char* operation, const char* name, const T* given, std::size_t first_version) {
  if (!given) refuse(message("{}: {}: got NULL", operation, name));
  std::size_t size;
  std::memcpy(&size, given, sizeof size);
  if (size < first_version || size > sizeof(T))
    refuse(message(
        "{}: {}: got a struct of size {}, expected {} to {} (a newer header than library {}?)",
        operation, name, size, first_version, sizeof(T), version()));
  T t{};
  std::memcpy(&t, given, size);
  return t;
}

// Bytes of the structs of version 0.1, up to the field that was their last. A struct may only grow
// behind it.
#define KVSCOUT_UP_TO(type, last) (offsetof(type, last) + sizeof(type::last))
// NOLINTBEGIN(bugprone-sizeof-expression): some last fields are pointers
constexpr std::size_t kTensor = KVSCOUT_UP_TO(kvscout_tensor, device_index),
                      kOptions = KVSCOUT_UP_TO(kvscout_options, message_bytes),
                      kQuantize = KVSCOUT_UP_TO(kvscout_quantize_args, scales),
                      kScoreFp4 = KVSCOUT_UP_TO(kvscout_score_fp4_args, kv_block_step),
                      kScore = KVSCOUT_UP_TO(kvscout_score_args, kv_block_step),
                      kSelect = KVSCOUT_UP_TO(kvscout_select_args, output),
                      kIndex = KVSCOUT_UP_TO(kvscout_index_args, scores),
                      kAppend = KVSCOUT_UP_TO(kvscout_append_args, global_scale),
                      kInfo = KVSCOUT_UP_TO(kvscout_backend_info, device_type),
                      kBounds = KVSCOUT_UP_TO(kvscout_bounds, max_k_tiles),
                      kPlan = KVSCOUT_UP_TO(kvscout_plan, text);
// NOLINTEND(bugprone-sizeof-expression)
#if defined(__LP64__)
static_assert(kTensor == 96 && kOptions == 64 && kQuantize == 56 && kScoreFp4 == 176 &&
              kScore == 128 && kSelect == 64 && kIndex == 48 && kAppend == 56 && kInfo == 432 &&
              kBounds == 24 && kPlan == 520);
#endif

// The enumerations of the two headers are the same numbers.
static_assert(static_cast<int>(DType::i64) == KVSCOUT_I64 &&
              static_cast<int>(DType::bf16) == KVSCOUT_BF16 &&
              static_cast<int>(DType::e2m1x2) == KVSCOUT_E2M1X2 &&
              static_cast<int>(DType::f32) == KVSCOUT_F32);
static_assert(static_cast<int>(Reduce::kv_group) == KVSCOUT_REDUCE_KV_GROUP &&
              static_cast<int>(Reduce::all) == KVSCOUT_REDUCE_ALL);
static_assert(static_cast<int>(SfLayout::layout_linear) == KVSCOUT_LAYOUT_LINEAR &&
              static_cast<int>(Device::cuda) == KVSCOUT_CUDA);

template <class Enum>
Enum choice(const char* operation, const char* name, std::int32_t value, std::int32_t last) {
  if (value < 0 || value > last)
    refuse(message("{}: {}: got {}, expected 0 to {}", operation, name, value, last));
  return static_cast<Enum>(value);
}

// Converts the parts of one call's arguments.
struct Reader {
  const char* operation;

  Tensor tensor(const char* name, const kvscout_tensor* given) const {
    if (!given) return {};
    const kvscout_tensor from = completed(operation, name, given, kTensor);
    if (from.rank < 1 || from.rank > Tensor::kMaxRank)
      refuse(message("{}: {}: got rank {}, expected 1 to {}", operation, name, from.rank,
                     Tensor::kMaxRank));
    Tensor t;
    t.data = from.data;
    t.dtype = choice<DType>(operation, name, from.dtype, KVSCOUT_I64);
    t.rank = from.rank;
    std::copy_n(from.shape, t.rank, t.shape.begin());
    std::copy_n(from.stride, t.rank, t.stride.begin());
    t.device = {choice<Device::Type>(operation, name, from.device_type, KVSCOUT_CUDA),
                from.device_index};
    t.defined = true;
    return t;
  }
  static GlobalScale scale(const kvscout_scale& s) { return {s.value, s.pointer}; }

  // What both score calls share.
  template <class From, class To>
  void requests(const From& from, To& to) const {
    to.cu_seqlens_q = tensor("cu_seqlens_q", from.cu_seqlens_q);
    to.cu_seqlens_k = tensor("cu_seqlens_k", from.cu_seqlens_k);
    to.page_table = tensor("page_table", from.page_table);
    to.seqused_k = tensor("seqused_k", from.seqused_k);
    to.causal = from.causal != 0;
    to.reduce_heads =
        choice<Reduce>(operation, "reduce_heads", from.reduce_heads, KVSCOUT_REDUCE_KV_GROUP);
    to.max_seqlen_q = from.max_seqlen_q;
    to.max_k_tiles = from.max_k_tiles;
    to.output = tensor("output", from.output);
    to.has_q_offset = from.has_q_offset != 0;
    to.q_offset = from.q_offset;
    to.q_offsets = tensor("q_offset", from.q_offsets);
    to.kv_block_start = from.kv_block_start;
    to.kv_block_step = from.kv_block_step ? from.kv_block_step : 1;
  }

  QuantizeArgs read(const kvscout_quantize_args* given) const {
    const auto from = completed(operation, "args", given, kQuantize);
    QuantizeArgs a;
    a.a = tensor("a", from.a);
    a.a_global_sf = scale(from.a_global_sf);
    a.layout = choice<SfLayout>(operation, "layout", from.layout, KVSCOUT_LAYOUT_LINEAR);
    a.codes = tensor("codes", from.codes);
    a.scales = tensor("scales", from.scales);
    return a;
  }
  ScoreFp4Args read(const kvscout_score_fp4_args* given) const {
    const auto from = completed(operation, "args", given, kScoreFp4);
    ScoreFp4Args a;
    a.q_fp4 = tensor("q_fp4", from.q_fp4);
    a.k_fp4 = tensor("k_fp4", from.k_fp4);
    a.q_scale = tensor("q_scale", from.q_scale);
    a.k_scale = tensor("k_scale", from.k_scale);
    a.q_global_scale = scale(from.q_global_scale);
    a.k_global_scale = scale(from.k_global_scale);
    requests(from, a);
    return a;
  }
  ScoreArgs read(const kvscout_score_args* given) const {
    const auto from = completed(operation, "args", given, kScore);
    ScoreArgs a;
    a.q = tensor("q", from.q);
    a.k = tensor("k", from.k);
    requests(from, a);
    return a;
  }
  SelectArgs read(const kvscout_select_args* given) const {
    const auto from = completed(operation, "args", given, kSelect);
    SelectArgs a;
    a.max_score = tensor("max_score", from.max_score);
    a.topk = from.topk;
    a.has_num_valid_pages = from.has_num_valid_pages != 0;
    a.num_valid_pages = from.num_valid_pages;
    a.num_valid_pages_tensor = tensor("num_valid_pages", from.num_valid_pages_tensor);
    a.output = tensor("output", from.output);
    a.force_begin_blocks = from.force_begin_blocks;
    a.force_end_blocks = from.force_end_blocks;
    a.skip_masked = from.skip_masked != 0;
    return a;
  }
  IndexArgs read(const kvscout_index_args* given) const {
    const auto from = completed(operation, "args", given, kIndex);
    IndexArgs a;
    a.score = read(from.score);
    a.topk = from.topk;
    a.force_begin_blocks = from.force_begin_blocks;
    a.force_end_blocks = from.force_end_blocks;
    a.output = tensor("output", from.output);
    a.scores = tensor("scores", from.scores);
    return a;
  }
  AppendArgs read(const kvscout_append_args* given) const {
    const auto from = completed(operation, "args", given, kAppend);
    AppendArgs a;
    a.k = tensor("k", from.k);
    a.k_cache_fp4 = tensor("k_cache_fp4", from.k_cache_fp4);
    a.k_cache_scale = tensor("k_cache_scale", from.k_cache_scale);
    a.slot_mapping = tensor("slot_mapping", from.slot_mapping);
    a.global_scale = scale(from.global_scale);
    return a;
  }
};

void copy_text(char* to, std::size_t bytes, const char* text) {
  if (!to || bytes == 0) return;
  const std::size_t length = std::min(std::strlen(text), bytes - 1);
  std::memcpy(to, text, length);
  to[length] = 0;
}

// Runs work(reader, options); what it throws becomes a code and a message.
template <class Work>
int guarded(const char* operation, const kvscout_options* given, Work work) {
  char* message = nullptr;
  std::size_t message_bytes = 0;
  const auto failed = [&](int code, const char* what) {
    copy_text(message, message_bytes, what);
    return code;
  };
  try {
    Options options;
    if (given) {
      const kvscout_options o = completed(operation, "options", given, kOptions);
      message = o.message, message_bytes = o.message_bytes;
      options = {o.backend, o.stream, o.workspace, o.workspace_bytes, o.threads, o.check != 0};
    }
    copy_text(message, message_bytes, "");
    work(Reader{operation}, options);
    return KVSCOUT_OK;
  } catch (const Error& e) {
    return failed(e.code() == Error::invalid_argument ? KVSCOUT_INVALID_ARGUMENT
                  : e.code() == Error::unsupported    ? KVSCOUT_UNSUPPORTED
                                                      : KVSCOUT_DEVICE_FAILURE,
                  e.what());
  } catch (const std::exception& e) {
    return failed(KVSCOUT_FAILURE, e.what());
  } catch (...) {
    return failed(KVSCOUT_FAILURE, "unknown failure");
  }
}

}  // namespace
}  // namespace kvscout

// The operations and their questions differ only in their names.
#define KVSCOUT_C_OPERATION(name, type)                                                        \
  int kvscout_##name(const kvscout_##type##_args* args, const kvscout_options* options) {      \
    return kvscout::guarded(#name, options, [&](const auto& reader, const auto& cpp_options) { \
      kvscout::name(reader.read(args), cpp_options);                                           \
    });                                                                                        \
  }
#define KVSCOUT_C_WORKSPACE(name, type)                                                        \
  int kvscout_##name##_workspace(const kvscout_##type##_args* args,                            \
                                 const kvscout_options* options, size_t* bytes) {              \
    return kvscout::guarded(#name, options, [&](const auto& reader, const auto& cpp_options) { \
      if (!bytes) kvscout::refuse(#name ": bytes: got NULL");                                  \
      *bytes = kvscout::name##_workspace(reader.read(args), cpp_options);                      \
    });                                                                                        \
  }
#define KVSCOUT_C_BOUNDS(name, type)                                                             \
  int kvscout_##name##_bounds(const kvscout_##type##_args* args, const kvscout_options* options, \
                              kvscout_bounds* bounds) {                                          \
    return kvscout::guarded(#name, options, [&](const auto& reader, const auto&) {               \
      kvscout::completed(#name, "bounds", bounds, kvscout::kBounds);                             \
      const kvscout::Bounds b = kvscout::bounds_of(reader.read(args));                           \
      bounds->max_seqlen_q = b.max_seqlen_q, bounds->max_k_tiles = b.max_k_tiles;                \
    });                                                                                          \
  }

KVSCOUT_C_OPERATION(nvfp4_quantize, quantize)
KVSCOUT_C_OPERATION(msa_proxy_score_fp4, score_fp4)
KVSCOUT_C_OPERATION(msa_proxy_score, score)
KVSCOUT_C_OPERATION(msa_topk_select, select)
KVSCOUT_C_OPERATION(msa_index_select_fp4, index)
KVSCOUT_C_OPERATION(msa_index_append_fp4, append)
KVSCOUT_C_WORKSPACE(msa_proxy_score_fp4, score_fp4)
KVSCOUT_C_WORKSPACE(msa_proxy_score, score)
KVSCOUT_C_WORKSPACE(msa_index_select_fp4, index)
KVSCOUT_C_BOUNDS(msa_proxy_score_fp4, score_fp4)
KVSCOUT_C_BOUNDS(msa_proxy_score, score)

int kvscout_explain(const kvscout_score_fp4_args* args, const kvscout_options* options,
                    kvscout_plan* plan) {
  return kvscout::guarded(
      "kvscout_explain", options, [&](const auto& reader, const auto& cpp_options) {
        kvscout::completed("kvscout_explain", "plan", plan, kvscout::kPlan);
        kvscout::copy_text(plan->text, sizeof plan->text,
                           kvscout::explain(reader.read(args), cpp_options).c_str());
      });
}

size_t kvscout_scale_bytes(int32_t layout, int64_t rows, int64_t groups) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;  // beyond any memory, below any overflow
  if (layout < 0 || layout > KVSCOUT_LAYOUT_LINEAR || rows < 0 || rows > kMost || groups < 0 ||
      (rows > 0 && groups > kMost / rows))
    return 0;
  return static_cast<size_t>(
      kvscout::scale_layout::bytes(static_cast<kvscout::SfLayout>(layout), rows, groups));
}

int kvscout_backend(int32_t index, kvscout_backend_info* info) {
  return kvscout::guarded("kvscout_backend", nullptr, [&](const auto&, const auto&) {
    using namespace kvscout;
    completed("kvscout_backend", "info", info, kInfo);
    const std::vector<BackendInfo> all = backends();
    if (index < 0 || static_cast<std::size_t>(index) >= all.size())
      refuse("kvscout_backend: index");
    const BackendInfo& b = all[static_cast<std::size_t>(index)];
    copy_text(info->name, sizeof info->name, b.name.c_str());
    copy_text(info->built_for, sizeof info->built_for, b.built_for.c_str());
    copy_text(info->status, sizeof info->status, b.status.c_str());
    info->available = b.available;
    info->device_type = b.device == Device::cpu ? KVSCOUT_CPU : KVSCOUT_CUDA;
  });
}

const char* kvscout_version(void) { return kvscout::version(); }
