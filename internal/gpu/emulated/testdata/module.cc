// Libraries and launches. Of the PTX, only its version and the names of its kernels are read. The kernels are in two
// tables: the kernels' source compiled for the host, and the tests' own kernels.
#include "../../kernels/src/abi.h"
#include "multicast.h"
#include "fiber.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The kernels for up to 8 ranks, for more, and the stand-ins for those with multicast; null if they are not linked in.
extern "C" __attribute__((weak)) const emulated_kernel ubc_emulated[], ubc_wide_emulated[], ubc_stand_in_emulated[];

// A library belongs to no context. A device has it after the first function of it was obtained there.
struct library {
	std::map<std::string, int> entries; // by name: .minnctapersm, or 0
	std::set<device *> on;
	int wrong = 0; // what its calls return
};
struct kernel {
	uintptr_t in; // its library
	std::string name;
};
struct function {
	device *d;
	uintptr_t kernel;
	const emulated_kernel *k;
	int threads, shared;
	int grids; // blocks that fit on a multiprocessor according to .minnctapersm, or 0
};
static std::map<uintptr_t, library> &libraries = *new std::map<uintptr_t, library>;
static std::map<uintptr_t, kernel> &kernels = *new std::map<uintptr_t, kernel>;
static std::map<uintptr_t, function> &functions = *new std::map<uintptr_t, function>;

// drop erases the pairs whose second satisfies which.
template <class M, class F> static void drop(M &all, F which) {
	for (auto i = all.begin(); i != all.end();) {
		auto at = i++;
		if (which(at->second))
			all.erase(at);
	}
}

void close_libraries(device *d) {
	for (auto &l : libraries)
		l.second.on.erase(d);
	drop(functions, [&](const function &f) { return f.d == d; });
}

int cuLibraryLoadData(uintptr_t *handle, const void *code, int *options, void **values, unsigned n, int *, void **,
	unsigned) {
	START("cuLibraryLoadData");
	const char *s = (const char *)code, *version = strstr(s, ".version");
	if (!version) {
		char *log = 0;
		size_t size = 0;
		for (unsigned i = 0; i < n; i++)
			if (options[i] == UBC_JIT_ERROR_LOG)
				log = (char *)values[i];
			else if (options[i] == UBC_JIT_ERROR_LOG_SIZE)
				size = (size_t)values[i];
		if (log && size)
			snprintf(log, size, "emulated GPU: no .version");
	}
	library l;
	l.wrong = !version ? INVALID_PTX : atoi(version + strlen(".version")) > 9 ? UNSUPPORTED_PTX_VERSION : 0;
	for (const char *e = s; (e = strstr(e, ".entry"));) {
		e += strlen(".entry");
		e += strspn(e, " \t\r\n");
		const char *grids = strstr(e, ".minnctapersm"), *body = strchr(e, '{');
		l.entries[std::string(e, strcspn(e, " \t\r\n({"))] = grids && body && grids < body ? atoi(strchr(grids, ' ')) : 0;
	}
	libraries[*handle = new_handle()] = l;
	return 0;
}

int cuLibraryUnload(uintptr_t handle) {
	START("cuLibraryUnload");
	auto l = libraries.find(handle);
	if (l == libraries.end())
		return INVALID_HANDLE;
	for (device *d : std::set<device *>(l->second.on))
		drain(locked, d);
	if (!libraries.erase(handle)) // unloaded meanwhile
		return INVALID_HANDLE;
	drop(functions, [&](const function &f) { return kernels[f.kernel].in == handle; });
	drop(kernels, [&](const kernel &k) { return k.in == handle; });
	return 0;
}

static bool wide(const char *name) { return !strncmp(name, "ubc_wide_", 9); }

static const emulated_kernel *look(const emulated_kernel *k, const char *name) {
	for (; k && k->name; k++)
		if (!strcmp(k->name, name))
			return k;
	return 0;
}

int cuLibraryGetKernel(uintptr_t *handle, uintptr_t in, const char *name) {
	START("cuLibraryGetKernel");
	auto l = libraries.find(in);
	if (l == libraries.end())
		return INVALID_HANDLE;
	if (l->second.wrong) // as a real driver does: loading it was no error
		return l->second.wrong;
	if (!l->second.entries.count(name))
		return NOT_FOUND;
	kernels[*handle = new_handle()] = {in, name};
	return 0;
}

int cuKernelGetFunction(uintptr_t *handle, uintptr_t of) {
	BEGIN("cuKernelGetFunction");
	auto at = kernels.find(of);
	if (at == kernels.end())
		return INVALID_HANDLE;
	kernel k = at->second;
	// Few threads per block keep the number of fibers small, because many ranks share a few processors. There are at
	// least as many threads as ranks.
	bool many = wide(k.name.c_str());
	function f = {d, of, look(many ? ubc_wide_emulated : ubc_emulated, k.name.c_str()), many ? 96 : 64, shared_default,
		libraries[k.in].entries[k.name]};
	if (!f.k)
		f.k = look(ubc_stand_in_emulated, k.name.c_str());
	if (!f.k)
		f.k = look(test_kernels, k.name.c_str()), f.threads = 1024;
	if (!f.k) {
		fprintf(stderr, "emulated GPU: kernel %s is in the PTX but not among those compiled for the host\n", k.name.c_str());
		return NOT_FOUND;
	}
	if (!libraries[k.in].on.count(d))
		drain(locked, d); // like the driver, which may have to wait, even if a kernel never ends
	auto l = libraries.find(k.in);
	if (l == libraries.end()) // unloaded meanwhile
		return INVALID_HANDLE;
	l->second.on.insert(d);
	functions[*handle = new_handle()] = f;
	return 0;
}

#define FUNCTION(f, handle) \
	auto f##_at = functions.find(handle); \
	if (f##_at == functions.end() || f##_at->second.d != d) \
		return INVALID_HANDLE; \
	function &f = f##_at->second

int cuFuncGetAttribute(int *value, int attribute, uintptr_t handle) {
	BEGIN("cuFuncGetAttribute");
	FUNCTION(f, handle);
	switch (attribute) {
	case UBC_FUNC_MAX_THREADS: *value = f.threads; break;
	case UBC_FUNC_REGISTERS: *value = 32; break;
	case UBC_FUNC_MAX_DYNAMIC_SHARED: *value = f.shared; break;
	default: *value = 0;
	}
	return 0;
}

int cuFuncSetAttribute(uintptr_t handle, int attribute, int value) {
	BEGIN("cuFuncSetAttribute");
	FUNCTION(f, handle);
	if (attribute != UBC_FUNC_MAX_DYNAMIC_SHARED || value < 0 || value > (int)shared_most)
		return INVALID_VALUE;
	f.shared = value;
	return 0;
}

static int fit(int threads, size_t shared) {
	int n = std::min(max_blocks_a_multiprocessor, threads_a_multiprocessor / threads);
	return shared ? (int)std::min<size_t>(n, shared_most / shared) : n;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, uintptr_t handle, int threads, size_t shared) {
	BEGIN("cuOccupancyMaxActiveBlocksPerMultiprocessor");
	FUNCTION(f, handle);
	if (threads <= 0)
		return INVALID_VALUE;
	*n = threads > f.threads || shared > (size_t)f.shared ? 0 : fit(threads, shared);
	return 0;
}

// A kernel's memory must be accessible to its device. The tests' own kernels have other parameters.
static bool check(device *d, const emulated_kernel *k, const std::vector<char> &params) {
	ubc_params p;
	ubc_channel_params c;
	memcpy(&p, params.data(), sizeof p);
	memcpy(&c, params.data(), sizeof c);
	ubc_mail_params m;
	static_assert(sizeof m <= page);
	memcpy(&m, params.data(), sizeof m);
	ubc_carry_params carry;
	memcpy(&carry, params.data(), sizeof carry);
	ubc_carry_step_params step;
	memcpy(&step, params.data(), sizeof step);
	ubc_copier_params copier;
	memcpy(&copier, params.data(), sizeof copier);
	bool many = wide(k->name);
	std::string name = many ? std::string("ubc_") + (k->name + 9) : k->name;
	std::lock_guard<std::mutex> locked(lock);
	auto good = [&](const char *what, unsigned i, uintptr_t at) {
		if (!at || reachable(d, at, true))
			return true;
		fprintf(stderr, "emulated GPU: kernel %s: device %d cannot reach %s %u at %#lx: %s\n", k->name, d->index, what, i,
			(unsigned long)at, file_of(at, 1, 0, 0) ? "it has no access" : "no device memory or page-locked memory is there");
		return false;
	};
	if (name == "ubc_channel") {
		for (unsigned i = 0; i < c.steps && i < UBC_MAX_STEPS; i++)
			if (c.step[i].bytes && (!good("the source of step", i, c.step[i].src) || !good("the destination of step", i,
				c.step[i].dst)))
				return false;
		return good("the end of rank", c.peer, c.theirs) && good("the own end, to rank", c.peer, c.mine) &&
			good("the status of the channel to rank", c.peer, c.status);
	}
	if (name == "ubc_carry") {
		for (unsigned i = 0; i < 2 && i < carry.parts; i++)
			if (!good("the host's memory of the source of part", i, carry.in[i]) ||
				!good("the host's memory of the destination of part", i, carry.out[i]))
				return false;
		return good("the source of", carry.id, carry.src_count ? carry.src : 0) &&
			good("the destination of", carry.id, carry.dst_count ? carry.dst : 0) && good("the page of", carry.id, carry.page) &&
			good("the status of", carry.id, carry.status);
	}
	if (name == "ubc_carry_step") {
		for (unsigned i = 0; i < 2; i++)
			if (step.bytes[i] && (!good("the source of copy", i, step.from[i]) || !good("the destination of copy", i, step.to[i])))
				return false;
		return good("the gate of", step.id, step.gate) && good("the page of", step.id, step.page) &&
			good("the status of", step.id, step.status);
	}
	if (name == "ubc_copier")
		return good("the page of copier", 0, copier.page) && good("the status of copier", 0, copier.status);
	if (name == "ubc_messages") {
		for (unsigned i = 0; i < m.lanes && i < UBC_MAX_LANES; i++)
			if (!good("the area of rank", m.lane[i].peer, m.lane[i].area) ||
				!good("the table of rank", m.lane[i].peer, m.lane[i].table))
				return false;
		for (unsigned i = 0; i < m.lanes && i < UBC_MAX_LANES; i++)
			for (unsigned j = 0; j < m.lane[i].messages && m.lane[i].first + j < UBC_MAX_MESSAGES; j++) {
				const ubc_message &x = m.message[m.lane[i].first + j];
				if (x.bytes && UBC_WAY(x.head) <= UBC_BY_PUSH && !good("the memory of message", m.lane[i].first + j, x.at))
					return false;
			}
		return good("the area of rank", m.rank, m.area) && good("the status of rank", m.rank, m.status);
	}
	for (unsigned r = 0; r < p.ranks && r < (many ? 1 : UBC_PARAM_RANKS); r++) // with many ranks, the area lists the
	                                                                           // others
		if (!good("the area at distance", r, p.area[r]) || !good("the table at distance", r, p.table[r]))
			return false;
	bool sends = p.count != 0, receives = sends;
	if (name == "ubc_move_v") {
		const ubc_u64 *count = (const ubc_u64 *)(params.data() + offsetof(ubc_vector_params, count));
		for (unsigned r = 0; r < p.ranks && sizeof p + 16 * (r + 1) <= params.size(); r++) {
			sends = sends || count[2 * r];
			receives = receives || count[2 * r + 1];
		}
	}
	return good("the status of rank", p.rank, p.status) && (!sends || good("the source of rank", p.rank, p.src)) &&
		(!receives || good("the destination of rank", p.rank, p.dst));
}

// room is what a kernel's blocks occupy of a device's multiprocessors.
struct room {
	device *d;
	int block, taken, all;
};

static bool place(void *p) {
	room &r = *(room *)p;
	int used = r.d->room;
	do {
		if (used + r.block > r.all)
			return false;
	} while (!r.d->room.compare_exchange_weak(used, used + r.block));
	r.taken += r.block;
	return true;
}

static void leave(void *p) {
	room &r = *(room *)p;
	r.d->room -= r.block;
	r.taken -= r.block;
}

static void run(device *d, const emulated_kernel *k, const std::vector<char> &params, unsigned blocks, unsigned threads,
	unsigned resident, room r) {
	if (d->error)
		return;
	bool own = look(ubc_emulated, k->name) == k || look(ubc_wide_emulated, k->name) == k || look(ubc_stand_in_emulated, k->name) == k;
	if (own && !check(d, k, params)) {
		d->error = ILLEGAL_ADDRESS;
		return;
	}
	auto broken = [](void *d) { return ((device *)d)->error != 0; };
	emu_kernel e = {k->name, k->f, params.data(), blocks, threads, resident, broken, d};
	if (r.all)
		e.place = place, e.leave = leave, e.place_arg = &r;
	running = d;
	switch (emu_run(e)) {
	case EMU_FAULT: d->error = ILLEGAL_ADDRESS; break;
	case EMU_TRAP: d->error = LAUNCH_FAILED; break;
	default: break;
	}
	d->room -= r.taken; // of blocks that were given up
}

// launched makes the work of a launch, with a copy of its parameters.
static int launched(device *d, uintptr_t handle, const unsigned *grid, const unsigned *block, unsigned shared, void **params,
	void **extra, std::function<void()> *work) {
	FUNCTION(f, handle);
	unsigned gx = grid[0], gy = grid[1], gz = grid[2], bx = block[0], by = block[1], bz = block[2];
	if (!gx || gy != 1 || gz != 1 || !bx || bx > 1024 || by != 1 || bz != 1 || shared > (unsigned)f.shared || params)
		return INVALID_VALUE;
	if (bx > (unsigned)f.threads)
		return LAUNCH_OUT_OF_RESOURCES;
	const char *from = 0;
	size_t n = 0;
	for (; extra && *extra != UBC_PARAM_END; extra += 2)
		if (*extra == UBC_PARAM_POINTER)
			from = (const char *)extra[1];
		else if (*extra == UBC_PARAM_SIZE)
			n = *(size_t *)extra[1];
		else
			return INVALID_VALUE;
	if (n > page || (n && !from))
		return INVALID_VALUE;
	std::vector<char> copy(page, (char)0xa5); // missing parameters have arbitrary values
	if (n)
		memcpy(copy.data(), from, n);
	auto *k = f.k;
	unsigned resident = fit(bx, shared) * multiprocessors();
	// .minnctapersm is of the largest blocks; smaller ones take a part.
	room r = {d, std::max(1, f.grids ? whole / f.grids * (int)bx / f.threads : whole / fit(bx, shared)), 0, room_counts() ? whole * multiprocessors() : 0};
	*work = [=] { run(d, k, copy, gx, bx, resident, r); };
	return 0;
}

int cuLaunchKernelEx(const ubc_launch_config *c, uintptr_t handle, void **params, void **extra) {
	BEGIN("cuLaunchKernelEx");
	STREAM(s, c->stream);
	for (unsigned i = 0; i < c->count; i++) // an early launch makes no difference here: kernels run one after the other
		if (c->attributes[i].id != UBC_LAUNCH_PROGRAMMATIC_SERIALIZATION)
			return INVALID_VALUE;
	std::function<void()> work;
	if (int code = launched(d, handle, c->grid, c->block, c->shared, params, extra, &work))
		return code;
	return enqueue(s, std::move(work));
}

int cuGraphExecKernelNodeSetParams(uintptr_t exec, uintptr_t node, const ubc_kernel_node *k) {
	BEGIN("cuGraphExecKernelNodeSetParams");
	std::function<void()> work;
	if (int code = launched(d, k->function, k->grid, k->block, k->shared, k->params, k->extra, &work))
		return code;
	return set_node(exec, node, std::move(work));
}
