#!/bin/sh
# The include rule: one direction, no arrow up, and no back end sees another.
#
#   include_rule.sh ROOT       checks a tree; prints every include that breaks the rule
#   include_rule.sh ROOT test  plants one fault of each kind in a copy and demands that it is found
set -eu
root=$1

# "FILE INCLUDED" for every quoted include of the project's code.
includes() {
  (cd "$1" && find include src cli examples bench python -name '*.h' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' |
    sort | xargs grep -oE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"[^"]+"' /dev/null |
    sed -E 's/:[[:space:]]*#[[:space:]]*include[[:space:]]*"/ /; s/"$//')
}

check() {
  includes "$1" | awk '
    function folder(file) { sub(/\/[^\/]*$/, "", file); return file }
    function bad(why) { print $1 " includes \"" $2 "\": " why; broken = 1 }
    { direct[$1] = direct[$1] " " $2; dir = folder($1) }
    dir ~ /^include/ && $2 !~ /^kvscout\// { bad("public headers read public headers alone") }
    dir == "src" && $2 ~ /\// && $2 !~ /^kvscout\// { bad("the stages know no back end") }
    dir ~ /^src\/cpu(\/|$)/ && $2 !~ /^(kvscout\/|cpu\/|(backend|span|order|ieee_floats)\.h$)/ { bad("not below this back end") }
    dir == "src/cuda" && $2 !~ /^(kvscout\/|cuda\/[^\/]*$|(backend|span|order)\.h$)/ { bad("not below what GPU back ends share") }
    dir ~ /^src\/cuda\/./ {
      own = dir; sub(/^src\//, "", own)
      if ($2 !~ /^(kvscout\/|cuda\/[^\/]*$|(backend|span|order)\.h$)/ && index($2, own "/") != 1) bad("not below this back end")
    }
    $1 ~ /(\.cuh|-inl\.h)$/ && $2 ~ /^(backend\.h|kvscout\/kvscout\.h)$/ { bad("kernels know problems and formats alone") }
    # Benchmarks look inside: they time kernels and print plans.
    dir ~ /^(cli|examples|python)/ && $2 ~ /^(backend|registry|validate|checks|read|span|order|ieee_floats)\.h$|^(cpu|cuda)\// {
      bad("outside of the library there is the public interface alone")
    }
    END {
      # The reference spells formats, spans and orders out itself: not even through another header.
      queue[1] = "src/cpu/reference.cpp"; n = 1
      for (i = 1; i <= n; ++i) {
        count = split(direct[queue[i]], names, " ")
        for (j = 1; j <= count; ++j) {
          file = names[j] ~ /^kvscout\// ? "include/" names[j] : "src/" names[j]
          if (names[j] ~ /^(kvscout\/(nvfp4|scale_layout|float_types)|span|order)\.h$/) {
            print queue[i] " brings \"" names[j] "\" to the reference, which is an opinion of its own"; broken = 1
          }
          if (!(file in seen)) { seen[file] = 1; queue[++n] = file }
        }
      }
      if (NR < 50) { print "only " NR " includes were found in '"$1"'"; broken = 1 }
      exit broken
    }'
}

if [ "${2:-}" != test ]; then
  check "$root"
  exit
fi

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
plant() {  # plant FILE INCLUDED
  rm -rf "$copy/tree" && mkdir "$copy/tree"
  (cd "$root" && cp -r include src cli examples bench python "$copy/tree")
  mkdir -p "$(dirname "$copy/tree/$1")"
  printf '#include "%s"\n' "$2" >>"$copy/tree/$1"
  if check "$copy/tree" >/dev/null; then
    echo "not found: $1 includes \"$2\""
    exit 1
  fi
}
plant include/kvscout/problem.h span.h
plant src/validate.cpp cpu/kernels.h
plant src/cpu/cpu.cpp registry.h
plant src/cpu/score.cpp cuda/device.h
plant src/cuda/device.cpp validate.h
plant src/cuda/sm80/operations.cu cuda/sm90/atom.cuh
plant src/cuda/planted.cuh backend.h
plant cli/main.cpp registry.h
plant src/cpu/reference.cpp kvscout/nvfp4.h
plant src/backend.h kvscout/float_types.h
echo "ten planted includes, ten found"
