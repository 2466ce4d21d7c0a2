// Multicast objects, shared by vmm.cc, memory.cc, copy.cc and module.cc.
#ifndef UBC_MULTICAST_H
#define UBC_MULTICAST_H
#include "memory.h"

// What all processes know about a multicast object lies in its memory file. Its bindings are slots of a table.
struct team;
team *open_team(int fd); // maps the file; null if it is no multicast object
void close_team(team *t);
size_t team_size(team *t);
bool in_team(team *t, int device);
size_t multicast_granularity(void);

// Waits, without the lock, until the object of a handle has all its devices, as the driver does; but not for ever.
int await_team(std::unique_lock<std::mutex> &locked, const memory &m);

// Whether a handle, or the memory behind one, may go: not while it is bound, or has bound something.
bool may_go(const memory &m, const char *what);

// find_team returns the multicast mapping at p, or null; piece the memory behind it, from p on, of each bound device, and
// how many bytes that is: at most n, and 0 if the device has no access, or not every device has memory bound there.
mapping *find_team(uintptr_t p);
size_t piece(device *d, uintptr_t p, size_t n, void **to, int *count);

extern thread_local device *running;             // whose kernel this thread runs
extern std::atomic<uint64_t> multicast_changes; // what threads remember about multicast addresses holds while it is the same
void forget_windows(const physical *of);

extern int teams, bindings; // live ones of this process

#endif
