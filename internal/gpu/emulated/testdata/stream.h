// What stream.cc and graph.cc share.
#ifndef UBC_STREAM_H
#define UBC_STREAM_H
#include "emulate.h"
#include <pthread.h>

// node is something that a graph does once what it comes after is done. Nodes of one branch are those of one stream.
struct node {
	std::function<void()> f;
	stream *branch;
	std::set<size_t> after;
};

// capture is what one or more streams record instead of doing it, in the order of the calls.
struct capture {
	uint64_t id;
	stream *origin;
	bool broken = false, over = false;
	std::vector<node> nodes;
	std::set<stream *> members;
	std::map<stream *, std::set<size_t>> tails; // what the next node of a stream comes after
};

void leave_capture(stream *s); // for a stream that goes in the middle of a capture

int start_thread(pthread_t *t, bool detached, void *(*f)(void *), void *arg);

// forget drops those of all that are of d's context.
template <class M, class Of> void forget(M &all, device *d, Of of) {
	for (auto i = all.begin(); i != all.end();)
		if (of(i->second) == d)
			i = all.erase(i);
		else
			++i;
}

#endif
