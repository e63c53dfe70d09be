#include "shape.h"

#include <limits>

#include "cases/data.h"
#include "inputs.h"
#include "kvscout/scale_layout.h"
#include "text.h"

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
  if (tokens > std::numeric_limits<std::int32_t>::max() ||
      pages > std::numeric_limits<std::int32_t>::max())
    throw Failure(
        kUsage, formatted("--batch {}: got {} queries and {} pages in all, expected int32", s.batch,
                          tokens, pages));
  used_.assign(static_cast<std::size_t>(s.batch), static_cast<std::int32_t>(s.keys));
  for (std::int64_t b = 0; b <= s.batch; ++b)
    cu_q_.push_back(static_cast<std::int32_t>(b * s.queries));
  static constexpr std::int32_t kNothing = 0;  // addresses are asked for, and not read
  const auto view = [](DType type, std::initializer_list<std::int64_t> shape) {
    return Tensor(&kNothing, type, shape);
  };
  args.q_fp4 = view(DType::u8, {tokens, s.q_heads, 64});
  args.k_fp4 = view(DType::u8, {pages, s.k_heads, kBlock, 64});
  args.q_scale =
      view(DType::u8, {scale_layout::bytes(SfLayout::layout_128x4, tokens * s.q_heads, 8)});
  args.k_scale = view(DType::u8, {pages * s.k_heads * scale_layout::kPageBytes});
  args.cu_seqlens_q = Tensor(cu_q_.data(), DType::i32, {s.batch + 1});
  args.seqused_k = Tensor(used_.data(), DType::i32, {s.batch});
  args.page_table = view(DType::i32, {s.batch, s.blocks()});
  args.max_seqlen_q = s.queries;
  args.max_k_tiles = s.blocks();
}

void ShapedProblem::fill() {
  cases::Random random(1);
  const auto bytes = [&](Tensor& t, std::vector<std::uint8_t>& memory, auto byte) {
    memory.resize(static_cast<std::size_t>(t.count()));
    for (std::uint8_t& b : memory) b = static_cast<std::uint8_t>(byte());
    t.data = memory.data();
  };
  bytes(args.q_fp4, q, [&] { return random.next(); });
  bytes(args.k_fp4, k, [&] { return random.next(); });
  bytes(args.q_scale, q_scale, [&] { return 0x30 + random.below(16); });
  bytes(args.k_scale, k_scale, [&] { return 0x30 + random.below(16); });
  for (std::int64_t page = args.page_table.count(); page > 0; --page)
    table_.push_back(static_cast<std::int32_t>(page - 1));  // pages come from an allocator
  args.page_table.data = table_.data();
}

}  // namespace kvscout::tool
