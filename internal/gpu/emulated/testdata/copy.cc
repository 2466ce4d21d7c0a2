// Copies and fills.
#include "multicast.h"
#include "fiber.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

// Touching unmapped memory breaks the context, as in a kernel.
struct move {
	device *d;
	uintptr_t dst, src;
	size_t n;
	int value;
};

static bool access(device *d, const move &m) {
	std::lock_guard<std::mutex> locked(lock);
	if (m.src && find_team(m.src)) {
		fprintf(stderr, "emulated GPU: a copy from a multicast address\n");
		return false;
	}
	return reachable(d, m.dst, false) && (!m.src || reachable(d, m.src, false));
}

static int queue_move(uintptr_t on, device *d, const char *what, void (*f)(void *), move m) {
	STREAM(s, on);
	if (!m.n)
		return 0;
	return enqueue(s, [=] {
		move mine = m;
		if (d->error)
			return;
		if (!access(d, m)) {
			fprintf(stderr, "emulated GPU: %s: device %d has no access to what is mapped there\n", what, d->index);
			d->error = ILLEGAL_ADDRESS;
		} else if (emu_try(what, f, &mine) != EMU_DONE) {
			d->error = ILLEGAL_ADDRESS;
		}
	});
}

// spread does f for each part of a multicast destination, and for each device that has memory there. It reports whether
// the destination is one.
template <class F> static bool spread(const move &m, F f) {
	{
		std::lock_guard<std::mutex> locked(lock);
		if (!find_team(m.dst))
			return false;
	}
	void *to[most_devices];
	for (size_t done = 0, n; done < m.n; done += n) {
		int count = 0;
		{
			std::lock_guard<std::mutex> locked(lock);
			n = piece(m.d, m.dst + done, m.n - done, to, &count);
		}
		if (!n) {
			fprintf(stderr, "emulated GPU: not all devices have memory bound at multicast address %#lx\n",
				(unsigned long)(m.dst + done));
			*(volatile char *)(m.dst + done) = 0; // a fault
			return true;
		}
		for (int i = 0; i < count; i++)
			f(to[i], done, n);
	}
	return true;
}

static void do_copy(void *arg) {
	move &m = *(move *)arg;
	if (spread(m, [&](void *to, size_t from, size_t n) { memmove(to, (const char *)m.src + from, n); }))
		return;
	memmove((void *)m.dst, (const void *)m.src, m.n);
}

// Whole pages are given back instead of zeroed, so that large memory that is never used costs nothing.
static void do_fill(void *arg) {
	move &m = *(move *)arg;
	if (spread(m, [&](void *to, size_t, size_t n) { memset(to, m.value, n); }))
		return;
	const uintptr_t page_mask = page - 1;
	uintptr_t from = (m.dst + page_mask) & ~page_mask, to = (m.dst + m.n) & ~page_mask;
	if (!m.value && to > from) {
		*(volatile char *)m.dst = 0; // fault now if it is not mapped
		*(volatile char *)(m.dst + m.n - 1) = 0;
		std::unique_lock<std::mutex> locked(lock);
		int fd;
		size_t offset;
		if (file_of(from, to - from, &fd, &offset) &&
			!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, to - from)) {
			locked.unlock();
			memset((void *)m.dst, 0, from - m.dst);
			memset((void *)to, 0, m.dst + m.n - to);
			return;
		}
	}
	memset((void *)m.dst, m.value, m.n);
}

int cuMemcpyAsync(uintptr_t dst, uintptr_t src, size_t n, uintptr_t s) {
	BEGIN("cuMemcpyAsync");
	return queue_move(s, d, "cuMemcpyAsync", do_copy, {d, dst, src, n, 0});
}

int cuMemcpyHtoDAsync_v2(uintptr_t dst, const void *src, size_t n, uintptr_t s) {
	BEGIN("cuMemcpyHtoDAsync_v2");
	return queue_move(s, d, "cuMemcpyHtoDAsync", do_copy, {d, dst, (uintptr_t)src, n, 0});
}

int cuMemcpyDtoHAsync_v2(void *dst, uintptr_t src, size_t n, uintptr_t s) {
	BEGIN("cuMemcpyDtoHAsync_v2");
	return queue_move(s, d, "cuMemcpyDtoHAsync", do_copy, {d, (uintptr_t)dst, src, n, 0});
}

int cuMemsetD8Async(uintptr_t dst, unsigned char value, size_t n, uintptr_t s) {
	BEGIN("cuMemsetD8Async");
	return queue_move(s, d, "cuMemsetD8Async", do_fill, {d, dst, 0, n, value});
}
