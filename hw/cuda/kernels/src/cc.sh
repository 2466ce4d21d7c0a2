f=$1; shift
clang-19 -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 -nocudainc -nocudalib -Xclang -target-feature -Xclang +ptx81 -O3 -S -DUBC_TYPE=${T:-float32} -std=c++17 "$@" $f -o /tmp/kx/o.ptx 2>&1 | grep -E "error|warning" ; wc -c o.ptx; sed 's/^.version 8.1/.version 7.8/' o.ptx > o78.ptx; /tmp/ptxas/x/usr/bin/ptxas -arch=sm_90 -v o78.ptx -o o.cubin 2>&1 | grep -E "Compiling|stack|Used"
