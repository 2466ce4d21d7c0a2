// Shared by memory.cc and vmm.cc.
#ifndef UBC_MEMORY_H
#define UBC_MEMORY_H
#include "emulate.h"
#include <sys/types.h>
#include <unistd.h>

// physical is memory without an address, or a multicast object. The bytes of memory count as used in the process that
// made it.
struct team;
void close_team(team *t);
struct physical {
	int fd;
	size_t size;
	int owner; // device
	bool made_here, exportable;
	team *of = nullptr;                              // of a multicast object
	std::map<int, std::shared_ptr<physical>> bound = {}; // by this reference to it: memory, by slot
	int bindings = 0;                                // of memory, by this process
	~physical() {
		close(fd);
		if (made_here)
			device_at(owner)->used -= size;
		if (of)
			close_team(of);
	}
};
typedef std::shared_ptr<physical> memory;
extern std::map<uint64_t, memory> &handles; // of cuMemCreate and so on

enum kind { LINEAR, MAPPED, OPENED, REGISTERED }; // cuMemAlloc, cuMemMap, cuIpcOpenMemHandle, cuMemHostRegister

// mapping is a range of addresses with memory.
struct mapping {
	kind what;
	uintptr_t at; // start, at a page
	size_t size;
	uintptr_t user; // start that the user knows
	size_t user_size;
	uint64_t id;
	memory m;
	device *d; // its context; another device may own the memory
	int opened;
	std::set<int> access; // devices with access, if MAPPED
	ino_t inode;
};
extern std::map<uintptr_t, mapping> &mappings;
mapping *find(uintptr_t p);
mapping &add(kind what, uintptr_t at, size_t size, device *d, memory m);
void drop(mapping *m); // also gives back its addresses

size_t round_up(size_t n, size_t to);
uintptr_t take_addresses(size_t n, size_t align = granularity); // 0 if there are none
void give_addresses(uintptr_t p, size_t n);
bool show(uintptr_t p, size_t n, const memory &m); // maps the memory there, readable and writable
void hide(uintptr_t p, size_t n);                  // makes the addresses fault

extern std::map<uintptr_t, size_t> &reserved; // by cuMemAddressReserve

int make(device *d, size_t n, memory *m);
bool ours(int fd, int *owner, size_t *size, ino_t *inode); // whether fd is memory of an emulated GPU; its owner

#endif
