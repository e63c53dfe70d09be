// SM89: mma.sync m16n8k16 in fp16 or bf16, with the e4m3 conversion instruction.
#pragma once

namespace kvscout::sm89 {

struct Atom {
  static constexpr bool kConvertsE4m3 = true;
  static constexpr bool kLooksUp = false;
};

}  // namespace kvscout::sm89
