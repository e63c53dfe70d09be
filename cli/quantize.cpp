// kvscout quantize, append: rows of 16 or 32 bits into NVFP4.

#include <algorithm>
#include <cmath>

#include "kvscout/float_types.h"
#include "kvscout/scale_layout.h"
#include "text.h"
#include "verbs.h"

namespace kvscout::tool {
namespace {

float element(const Tensor& t, std::int64_t i) {
  switch (t.dtype) {
    case DType::f32:
      return static_cast<const float*>(t.data)[i];
    case DType::bf16:
      return bf16_to_float(static_cast<const std::uint16_t*>(t.data)[i]);
    case DType::f16:
      return f16_to_float(static_cast<const std::uint16_t*>(t.data)[i]);
    default:
      return 0;  // the operation refuses the type
  }
}

float largest_magnitude(const Tensor& t) {
  float amax = 0;
  for (std::int64_t i = 0; i < t.count(); ++i) {
    const float x = std::abs(element(t, i));
    if (std::isfinite(x)) amax = std::max(amax, x);
  }
  return amax;
}

int run_quantize(const CallOptions& asked, const std::string& prefix) {
  Call call("nvfp4_quantize", asked);
  QuantizeArgs a;
  a.a = call.in.tensor("a");
  a.layout = call.in.layout();
  a.a_global_sf = call.in.has_either("a_global_sf")
                      ? call.in.scale("a_global_sf")
                      : GlobalScale{nvfp4::global_scale_of_amax(largest_magnitude(a.a)), nullptr};
  // Codes have the shape of the data with half the columns; scales are rows of the padded layout.
  const std::int64_t columns = a.a.rank ? a.a.size(-1) : 0;
  const std::int64_t rows = columns ? a.a.count() / columns : 0;
  std::vector<std::int64_t> shape(a.a.shape.begin(), a.a.shape.begin() + a.a.rank);
  if (!shape.empty()) shape.back() /= 2;
  a.codes = call.result(prefix.empty() ? "codes" : prefix + "_fp4", DType::u8, shape);
  a.scales = call.result(prefix.empty() ? "scales" : prefix + "_scale", DType::u8,
                         {scale_layout::padded_rows(a.layout, rows),
                          scale_layout::padded_groups(a.layout, columns / 16)});
  call.run(a);
  const float forward = a.a_global_sf.pointer ? *a.a_global_sf.pointer : a.a_global_sf.value;
  call.metadata["a_global_sf"] = formatted("{}", forward);
  if (!prefix.empty()) call.metadata[prefix + "_global_scale"] = formatted("{}", 1.0f / forward);
  return call.finish();
}

int run_append(const CallOptions& asked) {
  Call call("msa_index_append_fp4", asked, Inputs::Access::private_copy);
  AppendArgs a;
  a.k = call.in.tensor("k");
  a.k_cache_fp4 = call.in.tensor("k_cache_fp4");
  a.k_cache_scale = call.in.tensor("k_cache_scale");
  a.slot_mapping = call.in.tensor("slot_mapping");
  if (!call.in.has_either("global_scale"))  // the cache has one; another would spoil it
    throw Failure(kBadInput,
                  "msa_index_append_fp4: global_scale: got nothing, expected the forward "
                  "scale that the cache was written with (--global-scale)");
  a.global_scale = call.in.scale("global_scale");
  call.add_result("k_cache_fp4", a.k_cache_fp4);
  call.add_result("k_cache_scale", a.k_cache_scale);
  call.run(a);
  return call.finish();
}

}  // namespace

void add_quantize(CommandLine& line) {
  Verb verb = line.verb(
      "quantize", "turn bf16, fp16 or fp32 rows into NVFP4 codes and scales",
      "Arguments: a [, a_global_sf: the forward scale; default 2688 / amax]. Results: codes, "
      "scales; with\n"
      "--as k: k_fp4, k_scale and, in the metadata, k_global_scale, as 'kvscout score' reads "
      "them.\n"
      "Example: kvscout quantize keys.safetensors --as k -o k.safetensors");
  auto o = std::make_shared<CallOptions>();
  auto prefix = std::make_shared<std::string>();
  o->add_to(verb);
  verb.choice("--as", {"q", "k"}, *prefix, "name the results as arguments of score");
  verb.scalar("--global-scale", "X", o->given, "a_global_sf", "the forward global scale");
  verb.scalar("--layout", "{128x4,8x4,linear}", o->given, "sfLayout",
              "order of the scale bytes (default: 128x4)");
  verb.run([o, prefix] { return run_quantize(*o, *prefix); });
}

void add_append(CommandLine& line) {
  Verb verb = line.verb(
      "append", "quantise new keys into a paged NVFP4 cache",
      "Arguments: k, k_cache_fp4, k_cache_scale, slot_mapping, global_scale (forward). Results: "
      "the cache.\n"
      "Example: kvscout append step.safetensors --global-scale 448 -o cache.safetensors");
  auto o = std::make_shared<CallOptions>();
  o->add_to(verb);
  verb.scalar("--global-scale", "X", o->given, "global_scale", "the forward global scale");
  verb.run([o] { return run_append(*o); });
}

}  // namespace kvscout::tool
