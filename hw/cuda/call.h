// How the C files of this package call the driver.
#include "driver.h"

typedef struct {
#define FIELD(name, params) int (*name) params;
	UBC_CALLS(FIELD)
#undef FIELD
} ubc_driver;
extern ubc_driver ubc;
extern void *ubc_library; // the loaded driver

// Makes ctx current, and permits calls (an allocation, say) that a capture on another thread would forbid. Forbidden
// calls would fail, and also end that capture, which may be the user's. Returns what ubc_leave needs to restore both.
int ubc_enter(ubc_result *r, uintptr_t ctx);
void ubc_leave(ubc_result *r, int mode);

// The context alone. ubc_push reports whether it succeeded; then ubc_pop restores the context that was current.
int ubc_push(ubc_result *r, uintptr_t ctx);
void ubc_pop(ubc_result *r);

#define ENTER(ctx) \
	ubc_result r = {0}; \
	int mode = ubc_enter(&r, ctx)
#define LEAVE() \
	ubc_leave(&r, mode); \
	return r

// Like ENTER and LEAVE, for calls that every operation makes and that no capture forbids: only a capture of that stream
// sees what is queued on it, and anyone may ask for a capture's state at any time.
#define ENTER_QUICK(ctx) \
	ubc_result r = {0}; \
	int entered = ubc_push(&r, ctx)
#define LEAVE_QUICK() \
	if (entered) \
		ubc_pop(&r); \
	return r

// Calls the driver unless an earlier call of the function failed, and notes a failure.
#define TRY(name, ...) \
	do { \
		if (!r.code && (r.code = ubc.name(__VA_ARGS__))) \
			r.call = #name; \
	} while (0)
