// Shared by stream.cc and graph.cc.
#ifndef UBC_STREAM_H
#define UBC_STREAM_H
#include "emulate.h"
#include <pthread.h>

// node is work that a graph does after certain other nodes. The nodes of a branch were captured on one stream.
struct node {
	std::function<void()> f;
	stream *branch;
	std::set<size_t> after;
};

// capture is work that streams record, in the order of the calls, instead of doing it.
struct capture {
	uint64_t id;
	stream *origin;
	bool broken = false, over = false;
	std::vector<node> nodes;
	std::set<stream *> members;
	std::map<stream *, std::set<size_t>> tails; // the nodes before a stream's next node
};

void leave_capture(stream *s); // for a stream that is destroyed during a capture

int start_thread(pthread_t *t, bool detached, void *(*f)(void *), void *arg);

// forget erases the elements that belong to d's context.
template <class M, class Of> void forget(M &all, device *d, Of of) {
	for (auto i = all.begin(); i != all.end();)
		if (of(i->second) == d)
			i = all.erase(i);
		else
			++i;
}

#endif
