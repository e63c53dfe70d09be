#include "problem.h"

#include <algorithm>
#include <cstring>

namespace kvscout::cases {

namespace {
constexpr std::int64_t kGuard = 64;
constexpr std::uint8_t kPoison = 0xCD;

template <class F>
void for_each_element(const Tensor& t, F f) {  // in row-major order
  if (!t.defined || t.count() == 0) return;
  std::int64_t n[4], s[4];
  for (int i = 0; i < 4; ++i) {
    n[i] = i < t.rank ? t.shape[i] : 1;
    s[i] = i < t.rank ? t.stride[i] : 0;
  }
  for (std::int64_t a = 0; a < n[0]; ++a)
    for (std::int64_t b = 0; b < n[1]; ++b)
      for (std::int64_t c = 0; c < n[2]; ++c)
        for (std::int64_t d = 0; d < n[3]; ++d)
          f(static_cast<std::uint8_t*>(t.data) +
            (a * s[0] + b * s[1] + c * s[2] + d * s[3]) * bytes_of(t.dtype));
}

template <class Visit>
void for_each_tensor(Args& args, Visit visit) {
  std::visit([&](auto& a) { for_each_view(a, visit, [](const float*) {}); }, args);
}
}  // namespace

const char* operation_of(const Args& args) {
  static constexpr const char* kNames[] = {"nvfp4_quantize",       "msa_proxy_score_fp4",
                                           "msa_proxy_score",      "msa_topk_select",
                                           "msa_index_select_fp4", "msa_index_append_fp4"};
  return kNames[args.index()];
}

std::uint8_t* Problem::add_input(std::int64_t bytes, std::int64_t shift) {
  const std::int64_t size = std::max<std::int64_t>(bytes + shift, 1);  // a tensor has an address
  buffers.push_back({std::vector<std::uint8_t>(static_cast<std::size_t>(size), 0xFF), false});
  return buffers.back().bytes.data() + shift;
}

std::uint8_t* Problem::add_output(std::int64_t bytes, std::int64_t shift) {
  buffers.push_back(
      {std::vector<std::uint8_t>(static_cast<std::size_t>(bytes + shift + 2 * kGuard), kPoison),
       true});
  return buffers.back().bytes.data() + kGuard + shift;
}

Tensor Problem::add_i32(const std::vector<std::int32_t>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::uint8_t* data = add_input(4 * count);
  std::copy(values.begin(), values.end(), reinterpret_cast<std::int32_t*>(data));
  return Tensor(data, DType::i32, {count});
}

const float* Problem::add_float(float value) {
  std::uint8_t* data = add_input(4);
  std::memcpy(data, &value, 4);
  return reinterpret_cast<const float*>(data);
}

void run(const Args& args, const Options& options) {
  struct Call {
    const Options& options;
    void operator()(const QuantizeArgs& a) const { nvfp4_quantize(a, options); }
    void operator()(const ScoreFp4Args& a) const { msa_proxy_score_fp4(a, options); }
    void operator()(const ScoreArgs& a) const { msa_proxy_score(a, options); }
    void operator()(const SelectArgs& a) const { msa_topk_select(a, options); }
    void operator()(const IndexArgs& a) const { msa_index_select_fp4(a, options); }
    void operator()(const AppendArgs& a) const { msa_index_append_fp4(a, options); }
  };
  std::visit(Call{options}, args);
}

std::size_t workspace_bytes(const Args& args, const Options& options) {
  if (const auto* score_fp4 = std::get_if<ScoreFp4Args>(&args)) {
    return msa_proxy_score_fp4_workspace(*score_fp4, options);
  }
  if (const auto* score = std::get_if<ScoreArgs>(&args))
    return msa_proxy_score_workspace(*score, options);
  if (const auto* index = std::get_if<IndexArgs>(&args))
    return msa_index_select_fp4_workspace(*index, options);
  return 0;
}

void run_with_workspace(const Args& args, const Options& given) {
  Options options = given;
  std::vector<std::uint8_t> junk;
  if (const std::size_t bytes = workspace_bytes(args, options)) {
    junk.assign(bytes + 256, 0xA5);
    options.workspace = junk.data() + (256 - reinterpret_cast<std::uintptr_t>(junk.data()) % 256);
    options.workspace_bytes = bytes;
  }
  run(args, options);
}

Placed::Placed(Problem& host, Memory& memory) : host_(host), memory_(memory) {
  for (const Buffer& b : host.buffers) base_.push_back(memory.allocate(b.bytes.size()));
  upload();
  args = place(host.args);
}

Args Placed::place(const Args& host_args) const {
  const auto moved = [&](const void* p) -> void* {
    const auto* address = static_cast<const std::uint8_t*>(p);
    for (std::size_t i = 0; i < host_.buffers.size(); ++i) {
      const auto& bytes = host_.buffers[i].bytes;
      if (address < bytes.data() || address > bytes.data() + bytes.size()) continue;
      return static_cast<std::uint8_t*>(base_[i]) + (address - bytes.data());
    }
    return nullptr;
  };
  Args there = host_args;
  for_each_tensor(there, [&](const char*, Tensor& t, bool) {
    if (!t.defined) return;
    t.data = moved(t.data);
    t.device = memory_.device();
  });
  std::visit(
      [&](auto& a) {
        for_each_view(
            a, [](const char*, Tensor&, bool) {},
            [&](const float*& p) {
              if (p) p = static_cast<const float*>(moved(p));
            });
      },
      there);
  return there;
}

void Placed::upload() {
  for (std::size_t i = 0; i < base_.size(); ++i) {
    const auto& bytes = host_.buffers[i].bytes;
    memory_.write(base_[i], bytes.data(), bytes.size());
  }
}

void Placed::download() {
  for (std::size_t i = 0; i < base_.size(); ++i) {
    auto& bytes = host_.buffers[i].bytes;
    memory_.read(bytes.data(), base_[i], bytes.size());
  }
}

std::vector<std::uint32_t> written_words(Problem& problem) {
  std::vector<std::uint32_t> words;
  for_each_tensor(problem.args, [&](const char*, Tensor& t, bool written) {
    if (!written) return;
    for_each_element(t, [&](const std::uint8_t* p) {
      std::uint32_t word = 0;
      std::memcpy(&word, p, std::min(sizeof word, static_cast<std::size_t>(bytes_of(t.dtype))));
      if (t.dtype == DType::f32 && (word & 0x7FFFFFFFu) > 0x7F800000u) word = 0x7FC00000u;
      words.push_back(word);
    });
  });
  return words;
}

std::string untouched_elsewhere(Problem& after, const std::vector<Buffer>& before) {
  // Elements that may be written are made equal to what they were; then every byte must be.
  std::vector<Buffer> now = after.buffers;
  for_each_tensor(after.args, [&](const char*, Tensor& t, bool written) {
    if (!written) return;
    for_each_element(t, [&](const std::uint8_t* p) {
      for (std::size_t i = 0; i < now.size(); ++i) {
        const auto& bytes = after.buffers[i].bytes;
        if (p < bytes.data() || p >= bytes.data() + bytes.size()) continue;
        const auto place = p - bytes.data();
        std::memcpy(now[i].bytes.data() + place, before[i].bytes.data() + place,
                    static_cast<std::size_t>(bytes_of(t.dtype)));
        return;
      }
    });
  });
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i].bytes == before[i].bytes) continue;
    return before[i].written ? "a byte beside the elements of an output was written"
                             : "an input was written";
  }
  return "";
}

}  // namespace kvscout::cases
