#!/bin/sh
# Compares BenchmarkHit of package register with UCX's registration cache (libucx-dev and gcc are needed), in turns on
# one CPU, and prints the least nanoseconds of each and their ratio. Usage: run.sh [TURNS [LOOKUPS]]
set -eu
cd "$(dirname "$0")"
turns=${1:-5} lookups=${2:-1000000}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
gcc -O2 -o "$tmp/ucx" ucx_rcache.c -lucs
(cd .. && go test -c -o "$tmp/ours" .)
echo "load before: $(cut -d' ' -f1-3 /proc/loadavg)"
printf '%10s %10s %10s %8s   all turns\n' regions ours_ns ucx_ns ratio
for n in 1 1000 10000 100000 1000000; do
	ours= ucx=
	for _ in $(seq "$turns"); do
		ours="$ours $(cd .. && "$tmp/ours" -test.run '^$' -test.bench "^BenchmarkHit\$/^regions=$n\$" \
			-test.benchtime "${lookups}x" -test.cpu 1 | awk '/ns\/op/ { print $3 }')"
		ucx="$ucx $("$tmp/ucx" "$n" "$lookups")"
	done
	echo "$n $turns $ours $ucx" | awk '{
		a = $3; b = $(3 + $2)
		for (i = 1; i < $2; i++) { if ($(3 + i) < a) a = $(3 + i); if ($(3 + $2 + i) < b) b = $(3 + $2 + i) }
		printf "%10d %10.1f %10.1f %8.2f  ", $1, a, b, a / b
		for (i = 0; i < $2; i++) printf " %.0f/%.0f", $(3 + i), $(3 + $2 + i)
		print ""
	}'
done
echo "load after: $(cut -d' ' -f1-3 /proc/loadavg)"
