// What memory.cc and vmm.cc share.
#ifndef UBC_MEMORY_H
#define UBC_MEMORY_H
#include "emulate.h"
#include <sys/types.h>
#include <unistd.h>

// physical is memory without an address. Its bytes count as used in the process that made it.
struct physical {
	int fd;
	size_t size;
	int owner; // device
	bool made_here, exportable;
	~physical() {
		close(fd);
		if (made_here)
			device_at(owner)->used -= size;
	}
};
typedef std::shared_ptr<physical> memory;

enum kind { LINEAR, MAPPED, OPENED, REGISTERED }; // cuMemAlloc, cuMemMap, cuIpcOpenMemHandle, cuMemHostRegister

// mapping is a range of addresses with something behind it.
struct mapping {
	kind what;
	uintptr_t at; // of whole pages
	size_t size;
	uintptr_t user; // what the user was told
	size_t user_size;
	uint64_t id;
	memory m;
	device *d; // its context; the memory's owner is another thing
	int opened;
	std::set<int> access; // devices, of a MAPPED one
	ino_t inode;
};
extern std::map<uintptr_t, mapping> &mappings;
mapping *find(uintptr_t p);
mapping &add(kind what, uintptr_t at, size_t size, device *d, memory m);
void drop(mapping *m); // and its addresses

size_t round_up(size_t n, size_t to);
uintptr_t take_addresses(size_t n); // 0 if there are none
void give_addresses(uintptr_t p, size_t n);
bool show(uintptr_t p, size_t n, const memory &m); // maps it there, for reading and writing
void hide(uintptr_t p, size_t n);                  // lets the addresses fault

extern std::map<uintptr_t, size_t> &reserved; // by cuMemAddressReserve

int make(device *d, size_t n, memory *m);
bool ours(int fd, int *owner, size_t *size, ino_t *inode); // whether fd is memory of an emulated GPU, and whose

#endif
