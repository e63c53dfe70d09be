// The list as a whole, and the covering part of it.
#include "cases.h"
#include "cases/cover.h"

namespace kvscout::cases {

void add_covering_cases(std::vector<Case>& list) {
  const auto& rows = covering_rows();
  constexpr std::int64_t kSmall = 40000;  // row products
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ScoreSpec s = spec_of(rows[i], i + 1);
    std::string number = std::to_string(1000 + i).substr(1);
    Case c;
    c.name =
        (is_fp4(s.types) ? "score_fp4/pair_" : "score/pair_") + number + "_" + name_of(rows[i]);
    c.build = [s] { return build_score(s); };
    c.small = row_products(s) < kSmall;
    if (s.pages == Pages::out_of_range && s.paged && pages_read(s) > 0)
      c.checked_error = {"page_table"};
    list.push_back(c);
    if (!is_fp4(s.types)) continue;
    IndexSpec x;
    x.score = s;
    const int topk[] = {16, 1, 8, 64, 3, 32};
    x.topk = topk[i % 6];
    x.force_begin = i % 4 == 1 && x.topk > 1 ? 1 : 0;
    x.force_end = i % 3 != 0 && x.topk > x.force_begin ? 1 : 0;
    x.with_scores = i % 5 != 0;
    x.strided_output = i % 2 == 1;
    c.name = "index/pair_" + number + "_" + name_of(rows[i]) + "_top" + std::to_string(x.topk);
    c.build = [x] { return build_index(x); };
    list.push_back(c);
  }
}

const std::vector<Case>& all() {
  static const std::vector<Case> list = [] {
    std::vector<Case> l;
    add_storage_cases(l);
    add_score_cases(l);
    add_select_cases(l);
    add_index_cases(l);
    add_covering_cases(l);
    add_illegal_cases(l);
    return l;
  }();
  return list;
}

}  // namespace kvscout::cases
