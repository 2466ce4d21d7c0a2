#include <stdint.h>

// The levels, in the order of level.go. ubc_best returns the highest that this machine has.
enum { UBC_PORTABLE, UBC_NEON, UBC_AVX2, UBC_AVX512, UBC_LEVELS };
int ubc_best(void);

// Reduces n elements: first the accumulators in (NULL: none yet), then the ns sources, in order. With out, the result
// goes there neither rounded nor divided (float32 for half types), as the in of a later call. Without out, the result
// is divided by div (unless div is at most 1), rounded, and stored to the nd destinations.
//
// Sources (up to 16) and destinations (up to 8) are separate arguments because an array of Go pointers may not be
// passed to C.
void ubc_reduce(int level, int type, int op, long n, long div, int stream, const uint8_t *in, uint8_t *out,
	int ns, const uint8_t *s0, const uint8_t *s1, const uint8_t *s2, const uint8_t *s3,
	const uint8_t *s4, const uint8_t *s5, const uint8_t *s6, const uint8_t *s7,
	const uint8_t *s8, const uint8_t *s9, const uint8_t *s10, const uint8_t *s11,
	const uint8_t *s12, const uint8_t *s13, const uint8_t *s14, const uint8_t *s15,
	int nd, uint8_t *d0, uint8_t *d1, uint8_t *d2, uint8_t *d3, uint8_t *d4, uint8_t *d5, uint8_t *d6, uint8_t *d7);

// d = a op b, n elements.
void ubc_reduce2(int level, int type, int op, long n, int stream, uint8_t *d, const uint8_t *a, const uint8_t *b);

// d = a * f for floating types, a * k for integers.
void ubc_scale(int level, int type, long n, double f, uint64_t k, uint8_t *d, const uint8_t *a);

// Copies with stores that bypass the caches.
void ubc_stream(int level, uint8_t *d, const uint8_t *s, long bytes);
