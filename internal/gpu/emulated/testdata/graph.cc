// Captures and graphs.
#include "fiber.h"
#include "stream.h"
#include <stdio.h>
#include <stdlib.h>

// Launches of a graph never overlap.
struct graph {
	device *d;
	uint64_t capture;
	std::vector<node> nodes;
	std::shared_ptr<std::mutex> running = std::make_shared<std::mutex>();
};

// Nodes that callers have asked for.
struct place {
	uint64_t capture;
	size_t index;
};

static std::map<uintptr_t, std::shared_ptr<graph>> &graphs = *new std::map<uintptr_t, std::shared_ptr<graph>>;
static std::map<uintptr_t, place> &places = *new std::map<uintptr_t, place>;
static std::map<uintptr_t, std::shared_ptr<graph>> &execs = *new std::map<uintptr_t, std::shared_ptr<graph>>;

void close_graphs(device *d) {
	forget(graphs, d, [](auto &g) { return g->d; });
	forget(execs, d, [](auto &g) { return g->d; });
}

// Captures in global mode, and this thread's mode. As in the driver, an unsafe call on a thread that is not relaxed
// fails, and breaks these captures.
static std::set<capture *> global;
static thread_local int capture_mode;
enum { GLOBAL = 0, RELAXED = 2 };

int unsafe(void) {
	if (global.empty() || capture_mode == RELAXED)
		return 0;
	for (capture *c : global)
		c->broken = true;
	return CAPTURE_UNSUPPORTED;
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
	START("cuThreadExchangeStreamCaptureMode");
	if (*mode < GLOBAL || *mode > RELAXED)
		return INVALID_VALUE;
	std::swap(*mode, capture_mode);
	return 0;
}

// end ends a capture for all its streams.
static void end(const std::shared_ptr<capture> &c) {
	global.erase(c.get());
	for (stream *member : c->members)
		member->capturing = nullptr;
	c->members.clear();
	c->over = true;
}

void leave_capture(stream *s) {
	auto c = s->capturing;
	if (!c)
		return;
	c->broken = true;
	if (c->origin == s)
		return end(c);
	c->members.erase(s);
	s->capturing = nullptr;
}

int cuStreamBeginCapture_v2(uintptr_t handle, int mode) {
	BEGIN("cuStreamBeginCapture_v2");
	STREAM(s, handle);
	if (mode < GLOBAL || mode > RELAXED)
		return INVALID_VALUE;
	if (handle <= 2)
		return CAPTURE_UNSUPPORTED;
	if (s->capturing)
		return ILLEGAL_STATE;
	s->capturing = std::make_shared<capture>();
	s->capturing->id = new_handle();
	s->capturing->origin = s.get();
	s->capturing->members.insert(s.get());
	if (mode == GLOBAL)
		global.insert(s->capturing.get());
	return 0;
}

int cuStreamEndCapture(uintptr_t handle, uintptr_t *out) {
	BEGIN("cuStreamEndCapture");
	STREAM(s, handle);
	*out = 0;
	auto c = s->capturing;
	if (!c)
		return ILLEGAL_STATE;
	if (c->origin != s.get()) {
		c->broken = true;
		return CAPTURE_UNMATCHED;
	}
	end(c);
	if (c->broken)
		return CAPTURE_INVALIDATED;
	std::set<size_t> joined, left = c->tails[s.get()];
	while (!left.empty()) {
		size_t i = *left.begin();
		left.erase(left.begin());
		if (joined.insert(i).second)
			left.insert(c->nodes[i].after.begin(), c->nodes[i].after.end());
	}
	if (joined.size() != c->nodes.size())
		return CAPTURE_UNJOINED;
	auto g = std::make_shared<graph>();
	g->d = d;
	g->capture = c->id;
	g->nodes = c->nodes;
	graphs[*out = new_handle()] = g;
	return 0;
}

int cuStreamGetCaptureInfo_v2(uintptr_t handle, int *status, uint64_t *id, uintptr_t *graph, const uintptr_t **after,
	size_t *count) {
	BEGIN("cuStreamGetCaptureInfo_v2");
	STREAM(s, handle);
	if (!!graph != !!after || !!after != !!count)
		return NOT_SUPPORTED;
	if (after) {
		s->last.clear();
		if (s->capturing && !s->capturing->broken)
			for (size_t i : s->capturing->tails[s.get()]) {
				s->last.push_back(new_handle());
				places[s->last.back()] = {s->capturing->id, i};
			}
		*after = s->last.data();
		*count = s->last.size();
	}
	*status = !s->capturing ? 0 : s->capturing->broken ? UBC_CAPTURE_INVALIDATED : UBC_CAPTURE_ACTIVE;
	if (id && s->capturing)
		*id = s->capturing->id;
	return 0;
}

int cuGraphInstantiateWithFlags(uintptr_t *exec, uintptr_t handle, uint64_t flags) {
	BEGIN("cuGraphInstantiateWithFlags");
	auto g = graphs.find(handle);
	if (g == graphs.end() || flags)
		return INVALID_VALUE;
	execs[*exec = new_handle()] = g->second;
	return 0;
}

int cuGraphDestroy(uintptr_t handle) {
	BEGIN("cuGraphDestroy");
	return graphs.erase(handle) ? 0 : INVALID_VALUE;
}

// running is a graph that runs.
struct running {
	graph *g;
	std::mutex m;
	std::condition_variable changed;
	std::vector<bool> done;
};

struct running_branch {
	running *r;
	stream *branch;
};

static void run_branch(running *r, stream *branch) {
	for (size_t i = 0; i < r->g->nodes.size(); i++) {
		node &n = r->g->nodes[i];
		if (n.branch != branch)
			continue;
		std::unique_lock<std::mutex> locked(r->m);
		for (size_t before : n.after)
			while (!r->done[before])
				r->changed.wait(locked);
		locked.unlock();
		n.f();
		locked.lock();
		r->done[i] = true;
		r->changed.notify_all();
	}
}

static void *branch_thread(void *arg) {
	auto *b = (running_branch *)arg;
	emu_guard();
	run_branch(b->r, b->branch);
	emu_unguard();
	return 0;
}

// Branches run at the same time, because kernels may wait for each other.
static void run_graph(graph *g) {
	std::lock_guard<std::mutex> once(*g->running);
	running r = {g, {}, {}, std::vector<bool>(g->nodes.size())};
	std::set<stream *> all;
	for (auto &n : g->nodes)
		all.insert(n.branch);
	std::vector<running_branch> branches;
	for (stream *s : all)
		branches.push_back({&r, s});
	std::vector<pthread_t> threads(branches.size());
	for (size_t i = 1; i < branches.size(); i++)
		if (start_thread(&threads[i], false, branch_thread, &branches[i])) {
			fprintf(stderr, "emulated GPU: no thread for a branch of a graph\n");
			abort();
		}
	if (!branches.empty())
		run_branch(&r, branches[0].branch);
	for (size_t i = 1; i < branches.size(); i++)
		pthread_join(threads[i], 0);
}

int cuGraphLaunch(uintptr_t handle, uintptr_t on) {
	BEGIN("cuGraphLaunch");
	STREAM(s, on);
	auto e = execs.find(handle);
	if (e == execs.end())
		return INVALID_VALUE;
	auto g = e->second;
	return enqueue(s, [g] { run_graph(g.get()); });
}

// Queued launches keep their parameters.
int set_node(uintptr_t handle, uintptr_t node, std::function<void()> f) {
	auto e = execs.find(handle);
	auto p = places.find(node);
	if (e == execs.end() || p == places.end() || p->second.capture != e->second->capture)
		return INVALID_VALUE;
	bool alive = false; // the captured graph still exists: nodes belong to it
	for (auto &g : graphs)
		alive = alive || g.second->capture == p->second.capture;
	if (!alive)
		return INVALID_VALUE;
	auto changed = std::make_shared<graph>(*e->second);
	changed->nodes[p->second.index].f = std::move(f);
	e->second = changed;
	return 0;
}

int cuGraphExecDestroy(uintptr_t handle) {
	BEGIN("cuGraphExecDestroy");
	return execs.erase(handle) ? 0 : INVALID_VALUE;
}
