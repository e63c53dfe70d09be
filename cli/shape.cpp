#include "shape.h"

#include "cases/data.h"

namespace kvscout::tool {

void Shape::add_to(Verb& verb) {
  const auto count = [&](const char* flag, std::int64_t& value, const char* help) {
    verb.count(flag, value, 1, 1 << 24, help);
  };
  count("--batch", batch, "requests (default: 1)");
  count("--queries", queries, "queries of a request (default: 1)");
  count("--keys", keys, "keys of a request (default: 131072)");
  count("--q-heads", q_heads, "query heads (default: 4)");
  count("--k-heads", k_heads, "key heads (default: 1)");
}

ShapedProblem::ShapedProblem(const Shape& s) {
  const std::int64_t pages = s.blocks() * s.batch, tokens = s.tokens();
  const auto zeros = [](std::int64_t bytes) {
    return std::vector<std::uint8_t>(static_cast<std::size_t>(bytes));
  };
  q = zeros(tokens * s.q_heads * 64), q_scale = zeros((tokens * s.q_heads + 127) / 128 * 1024);
  k = zeros(pages * s.k_heads * 8192), k_scale = zeros(pages * s.k_heads * 1024);
  used_.assign(static_cast<std::size_t>(s.batch), static_cast<std::int32_t>(s.keys));
  for (std::int64_t b = 0; b <= s.batch; ++b)
    cu_q_.push_back(static_cast<std::int32_t>(b * s.queries));
  for (std::int64_t page = 0; page < pages; ++page)  // any order: pages come from an allocator
    table_.push_back(static_cast<std::int32_t>(pages - 1 - page));
  const auto bytes = [](std::vector<std::uint8_t>& v) {
    return Tensor(v.data(), DType::u8, {static_cast<std::int64_t>(v.size())});
  };
  args.q_fp4 = Tensor(q.data(), DType::u8, {tokens, s.q_heads, 64});
  args.k_fp4 = Tensor(k.data(), DType::u8, {pages, s.k_heads, kBlock, 64});
  args.q_scale = bytes(q_scale), args.k_scale = bytes(k_scale);
  args.cu_seqlens_q = Tensor(cu_q_.data(), DType::i32, {s.batch + 1});
  args.seqused_k = Tensor(used_.data(), DType::i32, {s.batch});
  args.page_table = Tensor(table_.data(), DType::i32, {s.batch, s.blocks()});
  args.max_seqlen_q = s.queries;
  args.max_k_tiles = s.blocks();
}

void ShapedProblem::fill() {
  cases::Random random(1);
  for (auto* codes : {&q, &k})
    for (std::uint8_t& byte : *codes) byte = static_cast<std::uint8_t>(random.next());
  for (auto* scales : {&q_scale, &k_scale})
    for (std::uint8_t& byte : *scales) byte = static_cast<std::uint8_t>(0x30 + random.below(16));
}

}  // namespace kvscout::tool
